#include "apps/train/run_speed.h"

#include "apps/predict/planned_machine.h"
#include "apps/report/throughput.h"
#include "core/log.h"

namespace ottava {

RunSpeed::RunSpeed(const Experiment& experiment, const StepPlan& plan, RankGroups& ranks, Device device)
    : experiment_(experiment), plan_(plan), ranks_(ranks), device_(device) {}

PeakSearch RunSpeed::peak_search() const {
  return {.metrics = experiment_.config.metrics,
          .decisions = experiment_.decisions,
          .cache = experiment_.config.training.gemm_cache,
          .uses_fp32 = flops_.fp32 > 0,
          .uses_bf16 = flops_.bf16 + flops_.fp8 > 0};
}

std::optional<Machine> RunSpeed::find_peaks() {
  flops_ = mean_flops(plan_, *ranks_.control);
  peaks_ = find_device_peaks(device_, peak_search());
  log::info("Peak FLOPS used for computing MFU: {:.3e} ({})", peaks_.bf16, peaks_.source);
  if (flops_.fp8 > 0) {
    log::info(
        "Peak FLOPS of FP8: {:.3e}; mfu is against the bf16 peak, mfu(fp8) the same FLOPs against this one, "
        "util weighs each product with the peak of its own precision",
        peaks_.fp8);
  }
  const std::optional<Machine> machine = running_machine(device_, peaks_, experiment_, *ranks_.control);
  if (ranks_.is_first()) {
    std::optional<StepTime> planned;
    if (machine) planned = FirstSteps::planned(plan_, experiment_, device_, *machine);
    first_steps_ = {std::move(planned), experiment_.decisions};
  }
  return machine;
}

void RunSpeed::begin(int64_t step, double seconds_waited) {
  since_fill_ = {};
  filled_at_step_ = step;
  waited_before_ = seconds_waited;
}

void RunSpeed::add(const Step& step, StepProfile* profile) {
  const double seconds = step.seconds - step.seconds_waited;
  if (profile) log::warning("step {}: {}", step.number, first_steps_.blame(profile->seconds(), seconds));
  for (const FirstSteps::Line& line : first_steps_.add(seconds, step.is_last))
    line.is_slow ? log::warning("step {}: {}", step.number, line.text)
                 : log::info("step {}: {}", step.number, line.text);
}

void RunSpeed::fill(StepMetrics& m, double seconds_waited) {
  const double steps = m.step - filled_at_step_;
  m.step_seconds = (since_fill_.seconds() - left_out_) / steps;
  m.data_seconds = (seconds_waited - waited_before_) / steps;
  const StepRate rate{
      .seconds = m.step_seconds,
      .tokens = static_cast<double>(experiment_.tokens_per_step()),
      .ranks = ranks_.world->size(),
      .model_flops_per_token = model_flops_per_token(experiment_.shape.model, experiment_.shape.sequence)};
  raise_peaks(peaks_, device_, peak_search(), [&](const DevicePeaks& peaks) {
    return throughput(flops_, peaks, rate).utilization_percent / 100;
  });
  left_out_ = 0;
  begin(m.step, seconds_waited);  // what is measured above is no part of the next steps
  const Throughput rates = throughput(flops_, peaks_, rate);
  m.tokens_per_second = rates.tokens_per_second;
  m.devices = ranks_.world->size();
  m.tflops = rates.tflops;
  m.mfu_percent = rates.mfu_percent;
  m.conservative_mfu_percent = rates.conservative_mfu_percent;
  m.utilization_percent = rates.utilization_percent;
  m.runs_float8 = flops_.fp8 > 0;
}

}  // namespace ottava
