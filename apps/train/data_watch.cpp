#include "apps/train/data_watch.h"

#include "core/counted.h"
#include "core/error.h"
#include "core/log.h"
#include "parallel/ranks/agree.h"

namespace ottava {

void DataWatch::log_found(const data::DataCheck& check) const {
  log::info("Data check: {} in {:.1f} MB ({}), {}, {} with bytes that are not UTF-8{}",
            counted(check.documents, "document"), static_cast<double>(check.bytes) * 1e-6,
            check.is_whole ? "all of it" : "as far as training.data_check_seconds goes",
            counted(check.bad_records, "bad record"), check.ill_formed,
            check.ill_formed > 0 ? ", the first " + check.first_ill_formed : "");
}

void DataWatch::look(double seconds) {
  std::string complaint;
  if (ranks_.rank() == 0) {
    try {
      const data::DataCheck check = loader_.scan().look(seconds);
      bad_found_ = check.bad_records;
      log_found(check);
    } catch (const Error& error) {
      complaint = error.what();
    }
  }
  if (ranks_.size() > 1) return require_no_complaint(ranks_, complaint);
  if (!complaint.empty()) throw DataError(complaint);
}

void DataWatch::look_at_the_rest() {
  if (ranks_.rank() != 0 || loader_.scan().progress().found.is_whole) return;
  loader_.scan().look_at_the_rest();
  is_watching_ = true;
}

bool DataWatch::poll() {
  if (const data::DataStats stats = loader_.stats(); stats.bad_records > bad_left_out_) {
    if (bad_left_out_ == 0 || stats.bad_records >= 2 * bad_left_out_) {
      bad_left_out_ = stats.bad_records;
      log::warning("{} left out so far (training.bad_records: skip); the first: {}",
                   counted(bad_left_out_, "bad record"), stats.first_bad_record);
    }
  }
  if (!is_watching_) return false;
  const data::DataScan::Progress progress = loader_.scan().progress();
  if (progress.problem) {
    problem_ = *progress.problem;
    is_watching_ = false;
    return true;
  }
  if (bad_found_ == 0 && progress.found.bad_records > 0) {
    log::warning("The look through the data has met a bad record, which training will leave out: {}",
                 progress.found.first_bad_record);
  }
  bad_found_ = progress.found.bad_records;
  if (progress.found.is_whole) {
    log_found(progress.found);
    is_watching_ = false;
  }
  return false;
}

void DataWatch::refuse(int64_t step, bool is_saved) {
  std::string complaint;
  if (ranks_.rank() == 0) {
    complaint = fmt::format(
        "{}; the run ends after step {}, before training reaches it, {}: correct the data or set "
        "training.bad_records: skip, then give the same command again",
        problem_, step,
        is_saved ? "and its checkpoint is saved" : "and nothing was saved (checkpoint.enable is false)");
  }
  if (ranks_.size() > 1) require_no_complaint(ranks_, complaint);
  throw DataError(complaint);
}

}  // namespace ottava
