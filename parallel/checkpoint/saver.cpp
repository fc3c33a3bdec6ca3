#include "parallel/checkpoint/saver.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <set>

#include "core/io/folder.h"
#include "core/log.h"
#include "core/processor_watch.h"
#include "core/stopwatch.h"
#include "core/sum_of.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/folder.h"

namespace ottava::checkpoint {

namespace fs = std::filesystem;

// A save between its preparation and its end.
struct CheckpointSaver::Pending {
  Checkpoint checkpoint;
  Layout layout;
  std::string temporary;
  WriteShards work;
  bool writes_small_files = false;

  std::vector<uint64_t> checksums;
  std::vector<Manifest::File> small_files;
  std::exception_ptr error;  // of writing; of rank 0's naming, once the ranks have agreed
  std::atomic<bool> cancel = false, done = false;
  bool is_agreed = false;
  std::thread thread;
  Stopwatch watch;
  double processor_seconds = 0;

  void write(HostSpans* spans) {
    const HostSpans::Scope writing(spans, HostSpans::Track::saves,
                                   fmt::format("write the checkpoint of step {}", checkpoint.step));
    const ProcessorWatch processor(ProcessorWatch::Of::thread);
    try {
      work.cancel = &cancel;
      checksums = write_shards(work);
      if (writes_small_files) write_small_files();
    } catch (...) {
      error = std::current_exception();
    }
    processor_seconds = processor.seconds();
    done = true;
  }

  ~Pending() {
    cancel = true;
    if (thread.joinable()) thread.join();
  }

 private:
  void write_small_files() {
    for (const TextFile& index : layout.indexes) add(index.name, index.content);
    for (const TextFile& text : checkpoint.texts) add(text.name, text.content);
  }
  void add(const std::string& name, const std::string& content) {
    write_file_synced(temporary + "/" + name, content);
    small_files.push_back({name, std::ssize(content), text_checksum(content), 0});
  }
};

namespace {

Manifest make_manifest(int64_t step, const Layout& layout) {
  Manifest manifest;
  manifest.step = step;
  for (const StoredFile& file : layout.files) {
    manifest.files.push_back({file.name, file.bytes, text_checksum(file.header), file.data_begin()});
  }
  for (const StoredTensor& tensor : layout.tensors) {
    manifest.tensors.push_back({tensor.entry.name, layout.files[tensor.file].name,
                                std::string(tensor.entry.type), tensor.entry.shape, 0});
  }
  return manifest;
}

// A checkpoint's own names: none of the caller's files may take them.
void check_names(const Checkpoint& checkpoint, const Layout& layout) {
  std::set<std::string> taken = {std::string(kManifestName)};
  for (const TextFile& index : layout.indexes) taken.insert(index.name);
  for (const StoredFile& file : layout.files) taken.insert(file.name);
  auto add = [&](const std::string& name) {
    if (!is_file_name(name) || !taken.insert(name).second) {
      fail<ConfigError>("checkpoint", "'{}' cannot be the name of a file beside the weights", name);
    }
  };
  for (const TextFile& text : checkpoint.texts) add(text.name);
}

}  // namespace

CheckpointSaver::CheckpointSaver(SaveOptions options, PatientRanks& group)
    : options_(std::move(options)), group_(group), snapshot_(options_.snapshot) {
  if (options_.keep_latest_k < 0 || options_.keep_latest_k == 1) {
    fail<ConfigError>("checkpoint",
                      "keep_latest_k is {}, expected 0 (keep all) or at least 2: a save that fails must not "
                      "leave the run without a checkpoint",
                      options_.keep_latest_k);
  }
}

CheckpointSaver::~CheckpointSaver() = default;

std::unique_ptr<CheckpointSaver::Pending> CheckpointSaver::prepare(const Checkpoint& checkpoint) {
  finish();
  auto pending = std::make_unique<Pending>();
  pending->checkpoint = checkpoint;
  pending->temporary = step_folder(options_.folder, checkpoint.step) + ".tmp";
  pending->writes_small_files = pending->work.flushes_all = group_.rank() == 0;
  pending->work.folder = pending->temporary;
  pending->work.copy = checkpoint.parameters.copy;
  group_.together([&] {
    LayoutOptions layout = layout_options_of(checkpoint.parameters);
    layout.max_file_bytes = options_.max_file_bytes;
    layout.weight = checkpoint.export_dtype.value_or(layout.weight);
    if (!is_weight_dtype(layout.weight)) {
      fail<ConfigError>("checkpoint", "export_dtype is {}, expected f32, bf16 or f16",
                        name_of(layout.weight));
    }
    pending->layout = plan_layout(checkpoint.parameters.specs, layout);
    pending->work.layout = &pending->layout;
    pending->work.runs = held_runs(pending->layout, checkpoint.parameters);
    if (group_.rank() == 0) check_names(checkpoint, pending->layout);
  });
  or_discard(*pending, [&] {
    group_.on_rank_0([&] {
      require_folder("checkpoint", options_.folder);
      remove_leftovers(options_.folder);
      require_folder("checkpoint", pending->temporary);
      create_files(pending->layout, pending->temporary);
    });
  });
  return pending;
}

void CheckpointSaver::or_discard(const Pending& pending, const std::function<void()>& work) const {
  try {
    work();
  } catch (const CommError&) {
    throw;
  } catch (...) {
    std::error_code ignored;
    if (group_.rank() == 0) fs::remove_all(pending.temporary, ignored);
    throw;
  }
}

void CheckpointSaver::save(const Checkpoint& checkpoint) {
  pending_ = prepare(checkpoint);
  pending_->write(options_.spans);
  finish();
}

void CheckpointSaver::begin(const Checkpoint& checkpoint) {
  std::unique_ptr<Pending> pending = prepare(checkpoint);
  or_discard(*pending, [&] {
    group_.together([&] {
      pending->work.runs =
          snapshot_.take(pending->layout, std::move(pending->work.runs), checkpoint.parameters);
      pending->work.copy = nullptr;
    });
  });
  pending_ = std::move(pending);
  try {
    pending_->thread = std::thread([p = pending_.get(), spans = options_.spans] { p->write(spans); });
  } catch (const std::system_error& error) {  // a rank's own limit, of which the others know nothing
    log::warning("training waits for the checkpoint of step {}, because no thread can be started: {}",
                 pending_->checkpoint.step, error.what());
    pending_->write(options_.spans);
  }
}

bool CheckpointSaver::poll() {
  if (!in_flight()) return true;
  uint64_t done_ranks = pending_->done ? 1 : 0;
  group_.sum(std::span(&done_ranks, 1));
  if (done_ranks != static_cast<uint64_t>(group_.size())) return false;
  if (pending_->is_agreed) {
    complete();
  } else {
    agree();
  }
  return !in_flight();
}

void CheckpointSaver::finish() {
  if (in_flight() && !pending_->is_agreed) agree();
  naming_.wait();
  if (in_flight()) complete();
}

void CheckpointSaver::agree() {
  std::unique_ptr<Pending> pending = std::move(pending_);
  if (pending->thread.joinable()) pending->thread.join();
  writing_seconds_ = pending->processor_seconds;
  or_discard(*pending, [&] {
    group_.together([&] {
      if (pending->error) std::rethrow_exception(pending->error);
    });
    group_.sum(pending->checksums);
  });
  pending->is_agreed = true;
  pending->done = group_.rank() != 0;
  pending_ = std::move(pending);
  if (group_.rank() == 0) naming_.start([this, &pending = *pending_] { name_and_rotate(pending); });
}

void CheckpointSaver::complete() {
  const std::unique_ptr<Pending> pending = std::move(pending_);
  or_discard(*pending, [&] {
    group_.on_rank_0([&] {
      if (pending->error) std::rethrow_exception(pending->error);
    });
  });
  if (options_.on_saved) options_.on_saved(pending->checkpoint.step);
}

std::string CheckpointSaver::left_text(std::string why) const {
  if (pending_->is_agreed) {
    naming_.wait();
    try {
      if (pending_->error) std::rethrow_exception(pending_->error);
      return fmt::format("the checkpoint of step {} is complete", pending_->checkpoint.step);
    } catch (const std::exception& error) {
      why = error.what();
    }
  }
  return fmt::format("the checkpoint of step {} was being written and stays unfinished ({}): {}",
                     pending_->checkpoint.step, why, newest_complete_text(options_.folder));
}

// Once it is done, `pending` may be gone.
void CheckpointSaver::name_and_rotate(Pending& pending) {
  const int64_t step = pending.checkpoint.step;
  const HostSpans::Scope naming(options_.spans, HostSpans::Track::saves,
                                fmt::format("name the checkpoint of step {}", step));
  const ProcessorWatch processor(ProcessorWatch::Of::thread);
  const Rotation rotation{options_.keep_latest_k, options_.keep_every, pending.checkpoint.rotate_after};
  bool is_named = false;
  try {
    name(pending);
    is_named = true;
  } catch (...) {
    pending.error = std::current_exception();
  }
  pending.done = true;
  if (is_named) rotate(rotation, step);
  writing_seconds_ += processor.seconds();
}

void CheckpointSaver::name(const Pending& pending) {
  Manifest manifest = make_manifest(pending.checkpoint.step, pending.layout);
  manifest.world_size = group_.size();
  manifest.layout = options_.layout;
  for (size_t t = 0; t < manifest.tensors.size(); ++t) manifest.tensors[t].checksum = pending.checksums[t];
  manifest.files.insert(manifest.files.end(), pending.small_files.begin(), pending.small_files.end());
  write_file_synced(manifest_path(pending.temporary), to_text(manifest));
  sync_folder(pending.temporary);
  set_later_ones_aside();
  commit_step(options_.folder, pending.checkpoint.step);
  const int64_t bytes = sum_of(manifest.files, &Manifest::File::bytes);
  log::info("Saved {}: {:.1f} MB in {:.2f} s", step_folder(options_.folder, pending.checkpoint.step),
            bytes * 1e-6, pending.watch.seconds());
}

void CheckpointSaver::rotate(Rotation rotation, int64_t just_saved) {
  try {
    rotate_steps(options_.folder, rotation, just_saved);
  } catch (const std::exception& error) {
    // The checkpoint is complete and stays so; only space is lost.
    log::warning("an old checkpoint could not be deleted: {}", error.what());
  }
}

// Before the checkpoint gets its name, so that a job that dies between the two finds the checkpoint that it
// began with as the newest.
void CheckpointSaver::set_later_ones_aside() {
  if (!set_aside_after_) return;
  const std::vector<std::string> paths = set_aside_after(options_.folder, *set_aside_after_);
  if (!paths.empty()) {
    log::warning(
        "this run went back to step {}, so the later checkpoints of the earlier branch are renamed to {}. "
        "They are neither loaded nor deleted any more: delete them, or rename them back to resume from them",
        *set_aside_after_, fmt::join(paths, ", "));
  }
  set_aside_after_.reset();
}

}  // namespace ottava::checkpoint
