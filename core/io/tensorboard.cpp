#include "core/io/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/host_name.h"
#include "core/io/crc32c.h"
#include "core/io/folder.h"
#include "core/text/number.h"

namespace ottava {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Protocol buffer fields: a key (number << 3 | wire type), then a varint, 8 or 4 little-endian bytes, or
// length and bytes.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
template <class T>
void append_fixed(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}
void append_key(std::string& out, uint32_t field, WireType type) { append_varint(out, field << 3 | type); }
void append_integer(std::string& out, uint32_t field, int64_t value) {
  append_key(out, field, kVarint);
  append_varint(out, value);
}
void append_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  append_key(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

// TFRecord stores checksums rotated and shifted, so that a checksum of checksums stays meaningful.
uint32_t masked_crc(std::string_view bytes) {
  uint32_t crc = crc32c(bytes);
  return std::rotr(crc, 15) + 0xa282ead8u;
}

// Event {double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5}
std::string event_header(int64_t step) {
  std::string event;
  append_key(event, 1, kFixed64);
  append_fixed(event, now_seconds());
  append_integer(event, 2, step);
  return event;
}

// Summary {repeated Value value = 1}
std::string event_with(std::string_view summary_value, int64_t step) {
  std::string summary, event = event_header(step);
  append_bytes(summary, 1, summary_value);
  append_bytes(event, 5, summary);
  return event;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::string& folder, int64_t resumed_at) {
  require_folder("tensorboard", folder);
  constexpr std::string_view kPrefix = "events.out.tfevents.";
  // TensorBoard reads files in the order of their names, and never one that comes before what it has read.
  // Clocks of machines differ, and are set back.
  auto seconds = static_cast<int64_t>(now_seconds());
  bool is_first = true;
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with(kPrefix)) continue;
    is_first = false;
    const std::string_view rest = std::string_view(name).substr(kPrefix.size());
    const int64_t of_file = parse_number<int64_t>(rest.substr(0, rest.find('.'))).value_or(0);
    if (of_file < std::numeric_limits<int64_t>::max()) seconds = std::max(seconds, of_file + 1);
  }
  file_ = File::create(
      fmt::format("{}/{}{}.{}.{}.0", folder, kPrefix, seconds, host_name("localhost"), ::getpid()));
  std::string event;
  append_key(event, 1, kFixed64);
  append_fixed(event, now_seconds());
  append_bytes(event, 3, "brain.Event:2");
  add_event(event);
  if (resumed_at <= 0 && is_first) return;
  // SessionLog {SessionStatus status = 1 {START = 1}}: orphaned are the events from this one's step on.
  std::string start = event_header(resumed_at + 1), session;
  append_integer(session, 1, 1);
  append_bytes(start, 7, session);
  add_event(start);
}

void TensorBoardWriter::add_scalar(std::string_view tag, double value, int64_t step) {
  // Value {string tag = 1; float simple_value = 2}
  std::string scalar;
  append_bytes(scalar, 1, tag);
  append_key(scalar, 2, kFixed32);
  append_fixed(scalar, static_cast<float>(value));
  add_event(event_with(scalar, step));
}

void TensorBoardWriter::add_text(std::string_view tag, std::string_view text, int64_t step) {
  // Value {string tag = 1; TensorProto tensor = 8; SummaryMetadata metadata = 9 {PluginData plugin_data = 1
  // {name = 1}}} TensorProto {DataType dtype = 1; TensorShapeProto tensor_shape = 2 {Dim dim = 2 {int64 size
  // = 1}}; string_val = 8}
  constexpr int64_t kStringType = 7;
  std::string dimension, shape, tensor, plugin, metadata, value;
  append_integer(dimension, 1, 1);
  append_bytes(shape, 2, dimension);
  append_integer(tensor, 1, kStringType);
  append_bytes(tensor, 2, shape);
  append_bytes(tensor, 8, text);
  append_bytes(plugin, 1, "text");
  append_bytes(metadata, 1, plugin);
  append_bytes(value, 1, tag);
  append_bytes(value, 8, tensor);
  append_bytes(value, 9, metadata);
  add_event(event_with(value, step));
}

void TensorBoardWriter::add_event(const std::string& event) {
  std::string length, frame;
  append_fixed(length, static_cast<uint64_t>(event.size()));
  frame = length;
  append_fixed(frame, masked_crc(length));
  frame += event;
  append_fixed(frame, masked_crc(event));
  file_.write_at(frame.data(), frame.size(), end_);
  end_ += std::ssize(frame);
}

}  // namespace ottava
