#include "parallel/checkpoint/saver.h"

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <limits>
#include <thread>
#include <utility>

#include "core/io/atomic_file.h"
#include "core/io/file.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/folder.h"
#include "tests/parallel/checkpoint/tiny_checkpoint.h"
#include "tests/support/captured_output.h"
#include "tests/support/temporary_folder.h"

namespace ottava::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

// A file that no file system takes: a save that fails after its tensors have been written.
const TextFile kUnwritable{std::string(300, 'x'), ""};

TEST_CASE("asynchronous saving keeps the values of the moment it began") {
  TemporaryFolder folder;
  std::atomic<int> as_expected = 0;
  run_ranks({2, 2, 1}, [&](PatientRanks& group, ShardCoordinates at) {
    TinyRank rank(tiny_model(), at);
    std::vector<int64_t> saved;
    const auto on_saved = [&](int64_t step) {
      as_expected += fs::exists(step_folder(folder.path(), step));
      saved.push_back(step);
    };
    CheckpointSaver saver({.folder = folder.path(), .on_saved = on_saved}, group);
    as_expected += saver.poll();
    for (int64_t step : {1, 2, 3}) {
      rank.fill(step);
      saver.begin(checkpoint_of(rank, step));
      as_expected += saver.in_flight() && std::ssize(saved) == step - 1;
      rank.clear();  // training goes on
      while (!saver.poll()) std::this_thread::yield();
      as_expected += !saver.in_flight();
    }
    rank.fill(4);
    saver.begin(checkpoint_of(rank, 4));
    rank.fill(5);
    saver.begin(checkpoint_of(rank, 5));  // finishes step 4
    as_expected += saved == std::vector<int64_t>{1, 2, 3, 4};
    saver.finish();
    rank.fill(6);
    saver.save(checkpoint_of(rank, 6));
    as_expected += saved == std::vector<int64_t>{1, 2, 3, 4, 5, 6};
  });
  CHECK(as_expected == 4 * (7 + 6 + 2));
  for (int64_t step : {1, 2, 3, 4, 5, 6}) CHECK(load(folder.path(), step, step) == step);
}

TEST_CASE("copies on the host lie as in their file, modulo a block, with the checksums of their runs") {
  std::vector<ParameterSpec> specs = tiny_model();
  for (ParameterSpec& spec : specs) spec.columns *= spec.is_vector ? 1 : 64;
  for (const TinyLayout ranks : {TinyLayout{1, 1, 1}, TinyLayout{2, 2, 1}}) {
    for (int r = 0; r < ranks.world(); ++r) {
      TinyRank rank(specs, ranks.at(r), DType::bf16);
      rank.fill(r + 1);
      const Layout layout = plan_layout(specs, layout_options_of(rank.parameters));
      const std::vector<HeldRun> held = held_runs(layout, rank.parameters);
      Snapshot snapshot(Snapshot::Memory::pageable);
      const std::vector<HeldRun> copies = snapshot.take(layout, held, rank.parameters);
      size_t next = 0;
      for (const HeldRun& run : held) {
        if (!run.is_owner) continue;
        const HeldRun& copy = copies.at(next++);
        const SafetensorsEntry& entry = layout.tensors[run.tensor].entry;
        const size_t element = size_of(run.memory.dtype);
        const char* from = static_cast<const char*>(copy.memory.data);
        uint64_t checksum = 0;
        for_each_span(entry.columns(), run.rectangle, 1000, [&](const ElementSpan& span) {
          checksum += element_checksum(from + static_cast<size_t>(span.local) * element,
                                       {element, span.first, static_cast<size_t>(span.count)});
        });
        CHECK(copy.checksum == checksum);
        CHECK(copy.is_finite == !layout.tensors[run.tensor].moment);
        CHECK(std::memcmp(from, run.memory.data, static_cast<size_t>(run.rectangle.numel()) * element) == 0);
        const int64_t offset =
            layout.files[static_cast<size_t>(layout.tensors[run.tensor].file)].data_begin() + entry.begin +
            (run.rectangle.row_begin * entry.columns() + run.rectangle.column_begin) *
                static_cast<int64_t>(element);
        CHECK(reinterpret_cast<uintptr_t>(from) % File::kBlock ==
              static_cast<uintptr_t>(offset) % File::kBlock);
      }
      CHECK(next == copies.size());
    }
  }
}

TEST_CASE("copies on the host know which weights are not finite, wherever in them") {
  std::vector<ParameterSpec> specs = tiny_model();
  for (ParameterSpec& spec : specs) spec.columns *= spec.is_vector ? 1 : 64;
  TinyRank rank(specs);
  rank.fill(1);
  const Layout layout = plan_layout(specs, layout_options_of(rank.parameters));
  Snapshot snapshot(Snapshot::Memory::pageable);
  const auto broken_weights = [&] {
    std::vector<std::string> names;
    for (const HeldRun& run : snapshot.take(layout, held_runs(layout, rank.parameters), rank.parameters))
      if (!layout.tensors[run.tensor].moment && !run.is_finite)
        names.push_back(layout.tensors[run.tensor].entry.name);
    return names;
  };
  CHECK(broken_weights().empty());
  auto* weight = static_cast<float*>(rank.parameters.shards[0].weight.data);
  for (const int64_t at :
       {int64_t{0}, int64_t{66'000}, int64_t{56 * 20 * 64 - 1}}) {  // it is copied in pieces
    const float before = std::exchange(weight[at], std::numeric_limits<float>::infinity());
    CHECK(broken_weights() == std::vector<std::string>{"model.embed_tokens.weight"});
    weight[at] = before;
  }
  auto* moment = static_cast<float*>(rank.parameters.shards[0].moments[Moment::exp_avg].data);
  moment[0] = std::numeric_limits<float>::infinity();
  CHECK(broken_weights().empty());
}

TEST_CASE("where no thread can be started, the save in the background is made at once") {
  TemporaryFolder folder;
  PatientRanks group;
  TinyRank rank(tiny_model());
  rank.fill(1);
  CheckpointSaver saver({.folder = folder.path()}, group);
  saver.begin(checkpoint_of(rank, 1));  // OpenMP's threads are there from now on
  saver.finish();
  pthread_attr_t before, too_large;
  REQUIRE(::pthread_getattr_default_np(&before) == 0);
  REQUIRE(::pthread_getattr_default_np(&too_large) == 0);
  REQUIRE(::pthread_attr_setstacksize(&too_large, size_t{1} << 60) == 0);
  REQUIRE(::pthread_setattr_default_np(&too_large) == 0);
  const CapturedOutput log;
  rank.fill(2);
  saver.begin(checkpoint_of(rank, 2));
  CHECK(::pthread_setattr_default_np(&before) == 0);
  for (pthread_attr_t* attributes : {&before, &too_large}) ::pthread_attr_destroy(attributes);
  CHECK_THAT(log.text(), Contains("training waits for the checkpoint of step 2, because no thread can be"));
  rank.clear();
  while (!saver.poll()) std::this_thread::yield();
  CHECK(load(folder.path(), 2) == 2);
}

TEST_CASE("a save in the background writes the bytes of one that training waits for") {
  TemporaryFolder folder;
  std::vector<ParameterSpec> specs = tiny_model();
  for (ParameterSpec& spec : specs) spec.columns *= spec.is_vector ? 1 : 64;
  PatientRanks group;
  TinyRank rank(specs, {});
  rank.fill(1);
  CheckpointSaver saver({.folder = folder.path()}, group);
  saver.save(checkpoint_of(rank, 1));
  saver.begin(checkpoint_of(rank, 2));
  rank.clear();
  saver.finish();
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder / "step-1")) {
    const std::string name = entry.path().filename().string();
    if (name == kManifestName) continue;  // names its step
    CHECK(read_file(folder / "step-2/" + name) == read_file(entry.path().string()));
    ++files;
  }
  CHECK(files >= 3);
  rank.fill(3);
  load_checkpoint(folder / "step-2", rank.parameters, group);
  CHECK(rank.wrong(1) == 0);
}

TEST_CASE("the manifest describes the ranks as the saver was told, and one without a description is read") {
  TemporaryFolder folder;
  save(folder.path(), {}, 1, 1, {.layout = "pp 2 x dp_shard 1 = 2"});
  CHECK(open_checkpoint(folder / "step-1").layout == "pp 2 x dp_shard 1 = 2");
  save(folder.path(), {}, 2, 1);
  CHECK(open_checkpoint(folder / "step-2").layout.empty());
  CHECK(load(folder.path(), 1) == 2);
}

TEST_CASE("a saver that ends with a save in flight leaves only a temporary folder") {
  TemporaryFolder folder;
  save(folder.path(), {}, 1, 1);
  {
    PatientRanks group;
    TinyRank rank(tiny_model());
    CheckpointSaver saver({.folder = folder.path()}, group);
    saver.begin(checkpoint_of(rank, 2));
  }
  CHECK(fs::exists(folder / "step-2.tmp"));
  CHECK(load(folder.path(), 1) == 1);
  save(folder.path(), {}, 3, 3);
  CHECK_FALSE(fs::exists(folder / "step-2.tmp"));
}

TEST_CASE("rotation keeps the newest, never touches what is not complete, and knows the step just saved") {
  TemporaryFolder folder;
  SaveOptions keep2{.keep_latest_k = 2};
  fs::create_directories(folder / "step-0");  // torn: no manifest
  for (int64_t step : {1, 2, 3, 4}) save(folder.path(), {}, step, step, keep2);
  auto names = [&] {
    std::vector<int64_t> steps;
    for (const SavedStep& saved : list_steps(folder.path())) steps.push_back(saved.step);
    return steps;
  };
  CHECK(names() == std::vector<int64_t>{0, 3, 4});
  save(folder.path(), {}, 2, 9, keep2);  // the run went back
  CHECK(names() == std::vector<int64_t>{0, 2, 4});
  save(folder.path(), {}, 5, 5, {.keep_latest_k = 0});
  CHECK(names() == std::vector<int64_t>{0, 2, 4, 5});
  // Multiples of 4 stay and are not counted.
  for (int64_t step : {6, 7, 8, 9})
    save(folder.path(), {}, step, step, {.keep_latest_k = 2, .keep_every = 4});
  CHECK(names() == std::vector<int64_t>{0, 4, 7, 8, 9});
  PatientRanks group;
  CHECK_THROWS_WITH(CheckpointSaver({.folder = "x", .keep_latest_k = 1}, group),
                    Contains("keep_latest_k is 1"));
  CHECK_THROWS_WITH(CheckpointSaver({.folder = "x", .keep_latest_k = -1}, group),
                    Contains("keep_latest_k is -1"));
}

TEST_CASE("what a run has gone back behind is set aside by its first save, whole and by name") {
  TemporaryFolder folder;
  for (int64_t step : {10, 20, 30, 40}) save(folder.path(), {}, step, step);
  fs::create_directory(folder / "step-30.abandoned");
  fs::create_directory(folder / "step-50");  // torn: no manifest
  std::vector<ParameterSpec> specs = tiny_model();
  run_ranks({1, 2, 1}, [&](PatientRanks& group, ShardCoordinates at) {
    TinyRank rank(specs, at);
    rank.fill(31);
    CheckpointSaver saver({.folder = folder.path(), .keep_latest_k = 3}, group);
    saver.go_on_after(20);
    saver.begin(checkpoint_of(rank, 31));
    saver.finish();
    saver.save(checkpoint_of(rank, 32));
  });
  std::vector<int64_t> steps;
  for (const SavedStep& saved : list_steps(folder.path())) steps.push_back(saved.step);
  CHECK(steps == std::vector<int64_t>{20, 31, 32, 50});
  CHECK(fs::exists(manifest_path(folder / "step-30.abandoned-2")));
  CHECK(fs::exists(manifest_path(folder / "step-40.abandoned")));
  remove_leftovers(folder.path());
  fs::rename(folder / "step-40.abandoned", folder / "step-40");
  CHECK(load(folder.path(), 40, 40) == 40);

  // A save that fails sets nothing aside.
  PatientRanks group;
  TinyRank rank(specs, {});
  CheckpointSaver saver({.folder = folder.path()}, group);
  saver.go_on_after(20);
  Checkpoint broken = checkpoint_of(rank, 35);
  broken.texts = {kUnwritable};
  CHECK_THROWS_AS(saver.save(broken), FileError);
  CHECK(fs::exists(folder / "step-40"));
  saver.save(checkpoint_of(rank, 35));
  CHECK_FALSE(fs::exists(folder / "step-40"));
}

TEST_CASE("saving a step again replaces it as a whole") {
  TemporaryFolder folder;
  save(folder.path(), {}, 7, 1);
  save(folder.path(), {1, 3, 1}, 7, 2);
  CHECK(load(folder.path(), 2) == 7);
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  // A replacement that died between its two renames (file systems that cannot exchange names).
  fs::rename(folder / "step-7", folder / "step-7.old");
  CHECK(load(folder.path(), 2) == 7);
  remove_leftovers(folder.path());
  CHECK(fs::exists(folder / "step-7"));
  // A link whose target is gone is in nobody's way.
  fs::remove_all(folder / "step-7");
  fs::create_directory_symlink("gone", folder / "step-7");
  save(folder.path(), {}, 7, 3);
  CHECK(load(folder.path(), 3) == 7);
}

TEST_CASE("who leaves a save unfinished is told the newest checkpoint that has its manifest") {
  TemporaryFolder folder;
  PatientRanks group;
  TinyRank rank(tiny_model());
  rank.fill(1);
  CheckpointSaver saver({.folder = folder.path()}, group);
  fs::create_directory(folder / "step-5");
  saver.begin(checkpoint_of(rank, 7));
  CHECK(saver.left_text("why") ==
        "the checkpoint of step 7 was being written and stays unfinished (why): "
        "there is no complete checkpoint");
  saver.finish();
  fs::create_directory(folder / "step-8");
  saver.begin(checkpoint_of(rank, 9));
  CHECK_THAT(saver.left_text("why"), Contains("/step-7 is the newest complete checkpoint"));
}

TEST_CASE("requests that cannot be met are refused") {
  TemporaryFolder folder;
  PatientRanks group;
  TinyRank rank(tiny_model());
  rank.fill(1);
  CheckpointSaver saver({.folder = folder.path()}, group);
  Checkpoint checkpoint = checkpoint_of(rank, 1);
  for (std::string name :
       {"manifest.json", "model.safetensors", "../x", "", "model.safetensors.index.json"}) {
    checkpoint.texts = {{name, "x"}};
    CHECK_THROWS_WITH(saver.save(checkpoint), Contains("cannot be the name of a file"));
  }
  checkpoint.texts = {{"a", "x"}, {"a", "y"}};
  CHECK_THROWS_WITH(saver.save(checkpoint), Contains("cannot be the name"));
  checkpoint = checkpoint_of(rank, 1);
  checkpoint.texts = {kUnwritable};
  CHECK_THROWS_WITH(saver.save(checkpoint), Contains("x: File name too long"));
  CHECK(fs::is_empty(folder.path()));  // the failed save gave its space back
  checkpoint.texts = {};
  checkpoint.parameters.shards[2].moments[Moment::exp_avg].data = nullptr;
  CHECK_THROWS_WITH(saver.save(checkpoint), Contains("q_proj.weight.exp_avg' has no memory on this rank"));
  checkpoint.parameters.shards.pop_back();
  CHECK_THROWS_WITH(saver.save(checkpoint), Contains("there are 9 parameters and 8 shards"));
  CHECK(load(folder.path(), 1) == -1);
  CHECK_THROWS_WITH(load(folder.path(), 1, 12), Contains("step-12 does not exist"));
  write_file_atomically(folder / "file", "");
  CheckpointSaver blocked({.folder = folder / "file/below"}, group);
  CHECK_THROWS_AS(blocked.save(checkpoint_of(rank, 1)), std::exception);
}

TEST_CASE("weights that are not finite are not saved, and a checkpoint that has some is passed over") {
  TemporaryFolder folder;
  save(folder.path(), {}, 1, 1);
  std::vector<ParameterSpec> specs = tiny_model();
  std::vector<std::string> messages(2);
  for (bool in_background : {false, true}) {
    run_ranks({2, 1, 1}, [&](PatientRanks& group, ShardCoordinates at) {
      TinyRank rank(specs, at);
      rank.fill(2);
      auto* weight = static_cast<float*>(rank.parameters.shards[2].weight.data);
      if (group.rank() == 1) weight[1] = std::numeric_limits<float>::quiet_NaN();
      CheckpointSaver saver({.folder = folder.path()}, group);
      messages[group.rank()] = message_of<NumericsError>([&] {
        if (!in_background) return saver.save(checkpoint_of(rank, 2));
        saver.begin(checkpoint_of(rank, 2));
        saver.finish();
      });
    });
    CHECK_THAT(messages[0], Contains("step-2 is not saved, because '") && Contains("' is not finite at [") &&
                                EndsWith("; " + folder / "step-1" + " is the newest complete checkpoint"));
    CHECK(messages[0] == messages[1]);
    CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  }
  TemporaryFolder empty;
  PatientRanks alone;
  TinyRank rank(specs, {});
  rank.fill(2);
  static_cast<float*>(rank.parameters.shards[2].weight.data)[1] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_WITH(CheckpointSaver({.folder = empty.path()}, alone).save(checkpoint_of(rank, 2)),
                    EndsWith("; there is no complete checkpoint"));
  save(folder.path(), {}, 2, 2);
  const SafetensorsFile file(folder / "step-2/model.safetensors");
  const SafetensorsEntry& entry = *file.find("model.norm.weight");
  const float infinity = std::numeric_limits<float>::infinity();
  File::open_for_writing(file.path()).write_at(&infinity, 4, file.header().data_begin + entry.begin + 4);
  CHECK_THROWS_WITH(load(folder.path(), 2, 2), Contains("'model.norm.weight' is not finite at [1]"));
  CHECK(load(folder.path(), 1) == 1);
}

TEST_CASE("small files lie beside the weights") {
  TemporaryFolder folder;
  PatientRanks group;
  TinyRank rank(tiny_model());
  rank.fill(1);
  Checkpoint checkpoint = checkpoint_of(rank, 1);
  checkpoint.texts.push_back({"tokenizer.json", "tok"});
  CheckpointSaver(SaveOptions{.folder = folder.path()}, group).save(checkpoint);
  CHECK(read_file(folder / "step-1/tokenizer.json") == "tok");
  CHECK(read_file(folder / "step-1/config.json") == "{}\n");
}

}  // namespace
}  // namespace ottava::checkpoint
