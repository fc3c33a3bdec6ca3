#include "core/cuda/blas_plans.h"
#include "core/cuda/runtime.h"
#include "core/error.h"

namespace ottava::cuda {
namespace {
[[noreturn]] void absent() { fail<DeviceError>("cuda", "{}", unavailable_reason()); }
}  // namespace

int device_count() { return 0; }
std::string unavailable_reason() { return "this binary was built without CUDA"; }
void* stream_create(int, StreamPriority) { absent(); }
void stream_destroy(void*) noexcept {}
void stream_synchronize(void*) { absent(); }
void* event_create(int) { absent(); }
void event_destroy(void*) noexcept {}
void event_record(void*, void*) { absent(); }
void event_wait(void*, void*) { absent(); }
void event_synchronize(int, void*) { absent(); }
double event_milliseconds(void*, void*) { absent(); }
void* allocate(int, size_t) { absent(); }
void release(int, void*) noexcept {}
void* allocate_pinned(size_t) { absent(); }
void release_pinned(void*) noexcept {}
void copy(void*, const void*, size_t, void*) { absent(); }
void fill_zero(void*, size_t, void*) { absent(); }
void capture_begin(void*) { absent(); }
CapturedGraph capture_end(void*) { absent(); }
void graph_launch(void*, void*) { absent(); }
void graph_destroy(void*) noexcept {}
MemoryInfo memory_info(int) { absent(); }
std::string device_name(int) { absent(); }
std::string device_uuid(int) { absent(); }
int compute_capability(int) { absent(); }
int sm_count(int) { absent(); }
int shared_bytes_per_block(int) { absent(); }
struct BlasPlans::State {};
BlasPlans::BlasPlans(int) { absent(); }
BlasPlans::~BlasPlans() = default;
void BlasPlans::select(Selection) { absent(); }
void BlasPlans::latch() { absent(); }
void BlasPlans::set_sm_count(int) { absent(); }
size_t BlasPlans::size() const { absent(); }
std::vector<BlasPlans::Choice> BlasPlans::choices() const { absent(); }
void BlasPlans::adopt(const std::vector<Choice>&) { absent(); }
std::string blas_library() { absent(); }

}  // namespace ottava::cuda
