#include "apps/data/data_watch.h"

#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/text/counted.h"
#include "parallel/comm/agree.h"
#include "parallel/comm/patience.h"

namespace ottava {

void DataWatch::log_found(size_t source, const data::DataCheck& check) const {
  const std::string& name = loader_.sources()[source].name;
  const bool has_documents = loader_.sources()[source].loader->corpus().knows_documents();
  log::info("Data check{}: {} in {:.1f} MB ({}), {}, {} with bytes that are not UTF-8{}",
            name.empty() ? "" : " of " + name,
            has_documents ? counted(check.documents, "document")
                          : counted(check.documents, "piece of bare ids", "pieces of bare ids"),
            check.bytes * 1e-6, check.is_whole ? "all of it" : "as far as training.data_check_seconds goes",
            counted(check.bad_records, "bad record"), check.ill_formed,
            check.ill_formed > 0 ? ", the first " + check.first_ill_formed : "");
}

void DataWatch::look(double seconds) {
  std::string complaint;
  const size_t sources = loader_.sources().size();
  for (size_t i = 0; ranks_.rank() == 0 && complaint.empty() && i < sources; ++i) {
    try {
      log_found(i, scan(i).look(seconds / sources));
    } catch (const Error& error) {
      complaint = error.what();
    }
  }
  if (ranks_.size() > 1) {
    const Patience patience(ranks_, Patience::kSeconds + seconds);
    return require_no_complaint<DataError>(ranks_, complaint, "data check");
  }
  if (!complaint.empty()) throw DataError(complaint);
}

void DataWatch::look_at_the_rest() {
  if (ranks_.rank() != 0) return;
  size_t next = watched_ ? *watched_ + 1 : 0;
  while (next < loader_.sources().size() && scan(next).progress().found.is_whole) ++next;
  watched_.reset();
  if (next == loader_.sources().size()) return;
  watched_ = next;
  bad_found_ = scan(next).progress().found.bad_records;
  scan(next).look_at_the_rest();
}

bool DataWatch::poll() {
  if (ranks_.rank() == 0) left_out_.report(loader_.stats(), "", ranks_.size(), "training.seq_len");
  if (watched_) {
    const data::DataScan::Progress progress = scan(*watched_).progress();
    if (progress.problem)
      object(*progress.problem +
             "; training has not reached it yet: correct it, or set training.bad_records: skip");
    if (bad_found_ == 0 && progress.found.bad_records > 0) {
      log::warning("The data check found a bad record, which training will leave out: {}",
                   progress.found.first_bad_record);
    }
    bad_found_ = progress.found.bad_records;
    if (progress.found.is_whole) log_found(*watched_, progress.found), look_at_the_rest();
  }
  return !problem_.empty();
}

void DataWatch::object(std::string problem) {
  if (problem.empty() || !problem_.empty()) return;
  problem_ = std::move(problem);
  watched_.reset();
}

void DataWatch::refuse(int64_t step, std::string_view not_saved) {
  std::string complaint;
  if (!problem_.empty()) {
    complaint = fmt::format("{}; the run ends after step {}, {}", problem_, step,
                            not_saved.empty() ? "whose checkpoint is saved"
                                              : fmt::format("and nothing was saved ({})", not_saved));
  }
  if (ranks_.size() > 1) require_no_complaint<DataError>(ranks_, complaint, "data check");
  throw DataError(complaint);
}

}  // namespace ottava
