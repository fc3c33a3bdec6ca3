#pragma once

#include <ostream>
#include <string>

#include "apps/predict/memory_moves.h"
#include "apps/predict/planned_machine.h"
#include "apps/predict/search.h"

namespace ottava {

// The sections that `ottava plan` prints about a step.

/// The ranks of a pipeline, what each holds and needs, and its schedule as a picture; nothing without one.
void print_pipeline(const PipelineLayout& pipeline, const RecordedLayout& recorded, std::ostream& out);
/// How ranks share sequences, how much of their traffic runs beside attention, and memory that this plan does
/// not include; nothing without context parallel.
void print_context_parallel(const Experiment& experiment, std::ostream& out);
/// Of context parallel: what cuDNN's attention takes more than ours, its bf16 gradients of gathered keys and
/// values; 0 without.
int64_t bytes_of_cudnn_gradients(const Experiment& experiment);
/// Memory by category, the largest allocations, and each phase.
void print_memory(const MemoryPlan& memory, std::ostream& out);
/// What NCCL takes besides, if it is used, and by what assumption.
void print_nccl(const RecordedLayout& recorded, std::ostream& out);
/// Whether it fits, by how much, and what it would cost to make it fit: memory_moves().
void print_verdict(const RecordedLayout& planned, const MemoryLimit& limit, const LayoutRecorder& recorder,
                   std::ostream& out);
void print_compute(const StepPlan& plan, std::ostream& out);
void print_traffic(const CommStats& stats, std::ostream& out);
/// The step's time with its range, where it goes, the longest operations and where the figures come from.
void print_time(const RecordedLayout& recorded, const Machine& machine, const Experiment& experiment,
                std::ostream& out);
/// What gathering FP8 weights as codes saves compared with the compute type, if FP8 and shards are in use.
/// Without it, codes of weights that are gathered in the compute type may be kept through the step, or the
/// weights gathered again for the backward; both are printed if the configuration leaves this open.
void print_float8_gather(const RecordedLayout& planned, const Config& config, const LayoutRecorder& recorder,
                         std::ostream& out);

/// The layouts that a search found, with why each is not the first, and the keys of the first; if none fits,
/// the closest, its keys and what it lacks.
void print_search(const SearchResult& result, const MemoryLimit& limit, const Machine& machine,
                  const Experiment& experiment, std::ostream& out);

/// "0.920 s", "12.3 ms", "45.0 us".
std::string duration_text(double seconds);

}  // namespace ottava
