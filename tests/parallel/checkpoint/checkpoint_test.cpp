#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "core/contains.h"
#include "core/io/atomic_file.h"
#include "core/io/file.h"
#include "core/io/safetensors_folder.h"
#include "parallel/checkpoint/layout.h"
#include "tests/parallel/checkpoint/tiny_checkpoint.h"
#include "tests/support/captured_output.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_ranks.h"

namespace ottava::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

const TinyLayout kLayouts[] = {{1, 1, 1}, {1, 3, 1}, {1, 8, 1}, {2, 1, 1}, {4, 1, 1},
                               {8, 1, 1}, {2, 3, 1}, {4, 2, 2}, {1, 2, 2}};

std::string all_bytes(const std::string& folder) {
  std::string text;
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "model.safetensors.index.json"}) {
    text += read_file(folder + "/" + name);
  }
  return text;
}

TEST_CASE("a checkpoint of any layout loads into any other, and its bytes do not depend on the layout") {
  TemporaryFolder folder;
  std::string bytes;
  std::vector<uint64_t> checksums;
  for (const TinyLayout& from : kLayouts) {
    INFO("saved with tp " << from.tp << " shards " << from.shards << " replicas " << from.replicas);
    save(folder.path(), from, 10, 3);
    std::string now = all_bytes(folder / "step-10");
    std::vector<uint64_t> sums;
    for (const Manifest::Tensor& tensor : open_checkpoint(folder / "step-10").tensors)
      sums.push_back(tensor.checksum);
    if (bytes.empty()) bytes = now, checksums = sums;
    CHECK(now == bytes);
    CHECK(sums == checksums);
    for (const TinyLayout& to : kLayouts) {
      INFO("loaded with tp " << to.tp << " shards " << to.shards << " replicas " << to.replicas);
      std::atomic<int64_t> wrong = 0, loaded = 0;
      run_ranks(to, [&](PatientRanks& group, ShardCoordinates at) {
        TinyRank rank(tiny_model(), at);
        rank.clear();
        loaded += load_newest(folder.path(), rank.parameters, group)->manifest.step;
        wrong += rank.wrong(3);
      });
      CHECK(wrong == 0);
      CHECK(loaded == 10 * to.world());
    }
  }
}

// The tiny model, its matrices (and vectors, if the rule takes them) trained by this rule.
std::vector<ParameterSpec> trained_by(const UpdateRuleTraits& rule) {
  std::vector<ParameterSpec> specs = tiny_model();
  for (ParameterSpec& spec : specs)
    if (!rule.is_for_matrices || !spec.is_vector) spec.rule = rule.rule;
  return specs;
}

TEST_CASE(
    "the moments of every update rule load into any layout; where another trained, they are left alone") {
  TemporaryFolder folder;
  for (const UpdateRuleTraits& before : kUpdateRules) {
    const std::vector<ParameterSpec> specs = trained_by(before);
    const std::string saved = folder / std::string(before.name);
    std::atomic<int64_t> bytes = 0;
    run_ranks({.tp = 2, .shards = 3}, [&](PatientRanks& group, ShardCoordinates at) {
      TinyRank rank(specs, at, DType::bf16);
      rank.fill(3);
      bytes += owned_bytes(rank.parameters);
      SaveOptions options;
      options.folder = saved;
      CheckpointSaver(options, group).save(checkpoint_of(rank, 1));
    });
    std::map<std::string, std::string> expected, stored;
    int64_t expected_bytes = 0;
    for (const ParameterSpec& spec : specs) {
      expected_bytes += spec.numel() * (4 + moment_bytes(spec.rule, DType::bf16));
      for (const ParameterPart& part : spec.parts)
        for (const MomentTraits& m : moments_of(spec.rule))
          expected[stored_name(part.hf_name, m)] = m.is_always_f32 ? "F32" : "BF16";
    }
    for (const Manifest::Tensor& tensor : open_checkpoint(saved + "/step-1").tensors)
      if (tensor.file.starts_with("optimizer")) stored[tensor.name] = tensor.type;
    CHECK(stored == expected);
    CHECK(bytes == expected_bytes);
    for (const UpdateRuleTraits& after : kUpdateRules) {
      const std::vector<ParameterSpec> now = trained_by(after);
      std::set<std::string> left_alone;
      for (size_t p = 0; p < now.size(); ++p) {
        if (now[p].rule == specs[p].rule) continue;
        for (const ParameterPart& part : now[p].parts)
          for (const MomentTraits& m : moments_of(now[p].rule))
            left_alone.insert(stored_name(part.hf_name, m));
      }
      CHECK(left_alone.empty() == (before.rule == after.rule));
      for (const TinyLayout& to : kLayouts) {
        INFO(before.name << " there, " << after.name << " here, loaded with tp " << to.tp << " shards "
                         << to.shards << " replicas " << to.replicas);
        std::atomic<int64_t> wrong = 0;
        const CapturedOutput captured;
        run_ranks(to, [&](PatientRanks& group, ShardCoordinates at) {
          TinyRank rank(now, at, DType::bf16);
          rank.fill(5);
          load_newest(saved, rank.parameters, group);
          wrong += rank.wrong(3, left_alone, 5);
        });
        CHECK(wrong == 0);
        const std::string said = captured.text();
        CHECK(contains_text(said, fmt::format("trained with {} there and with {} here begin with zero",
                                              before.name, after.name)) == !left_alone.empty());
        CHECK(contains_text(said, "begin with zero") == !left_alone.empty());
      }
    }
  }
}

TEST_CASE("saving moves no tensor bytes between ranks: matrices of 64 times the size send as much") {
  auto sent_by_all = [](int64_t wider) {
    TemporaryFolder folder;
    std::vector<ParameterSpec> specs = tiny_model();
    for (ParameterSpec& spec : specs) {
      if (!spec.is_vector) spec.columns *= wider;
    }
    std::atomic<int64_t> bytes = 0;
    const TinyLayout layout{2, 2, 1};
    test::run_thread_ranks({.ranks = layout.world()}, [&](Communicator& world) {
      TinyRank rank(specs, layout.at(world.rank()));
      rank.fill(1);
      PatientRanks group(world);
      SaveOptions options;
      options.folder = folder.path();
      CheckpointSaver saver(options, group);
      saver.save(checkpoint_of(rank, 1));
      bytes += world.stats().sent_bytes();
    });
    CHECK(open_checkpoint(folder / "step-1").step == 1);
    return bytes.load();
  };
  const int64_t narrow = sent_by_all(1);
  CHECK(narrow > 0);
  CHECK(sent_by_all(64) == narrow);
}

TEST_CASE("files are cut between tensors, and the sizes follow from the specs") {
  TemporaryFolder folder;
  save(folder.path(), {2, 2, 1}, 1, 0, {.max_file_bytes = 4000});
  SafetensorsFolder model(folder / "step-1");
  CHECK(model.tensors().size() == 14);
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "step-1")) {
    std::string name = entry.path().filename().string();
    if (name.find(".safetensors") == std::string::npos || name.find("json") != std::string::npos) continue;
    SafetensorsFile file(entry.path().string());
    CHECK((file.header().data_bytes <= 4000 || file.header().tensors.size() == 1));
    CHECK(file.header().data_begin % 64 == 0);
    CHECK(file.header().metadata == std::vector<std::pair<std::string, std::string>>{{"format", "pt"}});
    ++files;
  }
  CHECK(files > 8);
  CHECK(fs::exists(folder / "step-1/model-00001-of-00007.safetensors"));
  CHECK(load(folder.path(), 0) == 1);
}

TEST_CASE("bf16 moments, converted where the run that loads keeps f32") {
  TemporaryFolder folder;
  std::vector<ParameterSpec> specs = tiny_model();
  PatientRanks group;
  TinyRank rank(specs, {}, DType::bf16);
  rank.fill(1);
  CheckpointSaver(SaveOptions{.folder = folder.path()}, group).save(checkpoint_of(rank, 5));
  TinyRank same(specs, {}, DType::bf16), wide(specs, {}, DType::f32);
  load_checkpoint(folder / "step-5", same.parameters, group);
  CHECK(same.wrong(1) == 0);
  load_checkpoint(folder / "step-5", wide.parameters, group);
  auto narrow = static_cast<const bf16*>(same.parameters.shards[0].moments[Moment::exp_avg].data);
  auto f32 = static_cast<const float*>(wide.parameters.shards[0].moments[Moment::exp_avg].data);
  for (int i = 0; i < 56 * 20; ++i) REQUIRE(f32[i] == static_cast<float>(narrow[i]));
}

TEST_CASE("ranks wait for one that writes for longer than a collective call may take") {
  std::atomic<int> passed = 0;
  test::run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    PatientRanks group(world);
    const double before = world.state().timeout_seconds();
    world.state().set_timeout_seconds(0.1);
    group.on_rank_0([] { std::this_thread::sleep_for(std::chrono::milliseconds(600)); });
    passed += world.state().timeout_seconds() == 0.1;
    world.state().set_timeout_seconds(before);
  });
  CHECK(passed == 2);
}

TEST_CASE("only errors of files are called such on all ranks") {
  std::atomic<int> files = 0, others = 0;
  test::run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    PatientRanks group(world);
    files += !file_error_of([&] { group.on_rank_0([] { throw FileError("torn"); }); }).empty();
    try {
      group.on_rank_0([] { throw DeviceError("gone"); });
    } catch (const FileError&) {
    } catch (const Error& error) {
      others += std::string(error.what()) == "[checkpoint] rank 0: gone";
    }
  });
  CHECK(files == 2);
  CHECK(others == 2);
}

TEST_CASE("ranks that see other checkpoints of the same step are refused, replicas too") {
  TemporaryFolder folder;
  for (int machine : {0, 1}) save(folder / std::to_string(machine), {}, 5, machine);
  const TinyLayout layout = GENERATE(TinyLayout{.replicas = 2}, TinyLayout{.shards = 2});
  std::atomic<int> refused = 0;
  run_ranks(layout, [&](PatientRanks& group, ShardCoordinates at) {
    TinyRank rank(tiny_model(), at);
    const std::string path = folder / (std::to_string(group.rank()) + "/step-5");
    const std::string said = config_error_of([&] { load_checkpoint(path, rank.parameters, group); });
    refused += said.find("the manifest of " + path + " differs between ranks") != std::string::npos;
  });
  CHECK(refused == 2);
}

TEST_CASE("what a broken checkpoint left is cleared before the next one is tried") {
  TemporaryFolder folder;
  PatientRanks group;
  TinyRank rank(tiny_model());
  for (int step : {4, 5}) {
    rank.fill(step);
    CheckpointSaver(SaveOptions{.folder = folder.path()}, group).save(checkpoint_of(rank, step));
  }
  const std::string file = folder / "step-5/model.safetensors";
  const auto at = static_cast<int64_t>(fs::file_size(file)) - 1;
  File::open_for_writing(file).write_at("x", 1, at);
  int cleared = 0;
  CHECK(load_newest(folder.path(), rank.parameters, group, -1,
                    {.before_each = [&](const std::string&) { ++cleared; }})
            ->manifest.step == 4);
  CHECK(cleared == 2);
  CHECK(rank.wrong(4) == 0);
}

TEST_CASE("a run goes on whatever characters the name of its folder has") {
  TemporaryFolder parent;
  const std::string folder = parent / "new\nline, \"quote\" ';\xc3\xa4";
  PatientRanks group;
  TinyRank rank(tiny_model());
  for (int step : {4, 5}) {
    rank.fill(step);
    CheckpointSaver(SaveOptions{.folder = folder}, group).save(checkpoint_of(rank, step));
  }
  rank.clear();
  CHECK(load_newest(folder, rank.parameters, group)->manifest.step == 5);
  CHECK(rank.wrong(5) == 0);
}

TEST_CASE("a checkpoint that lost the index of its optimizer state is broken, not one of weights") {
  TemporaryFolder folder;
  for (int64_t step : {4, 5}) save(folder.path(), {}, step, step);
  REQUIRE(fs::remove(folder / "step-5/optimizer.safetensors.index.json"));
  CHECK(load(folder.path(), 4) == 4);
}

TEST_CASE("a model without optimizer state starts a run but does not continue one") {
  TemporaryFolder folder;
  PatientRanks group;
  TinyRank rank(tiny_model());
  rank.fill(1);
  rank.parameters.with_optimizer = false;
  CheckpointSaver(SaveOptions{.folder = folder.path()}, group).save(checkpoint_of(rank, 5));
  rank.clear();
  load_checkpoint(folder / "step-5", rank.parameters, group);
  CHECK(rank.wrong(1) == 0);
  rank.parameters.with_optimizer = true;
  CHECK_THROWS_WITH(load_checkpoint(folder / "step-5", rank.parameters, group),
                    Contains("has no optimizer state"));
  CHECK_THROWS_AS(load_newest(folder.path(), rank.parameters, group), ConfigError);
  // An older one can be continued, but would come to step 5 with other weights: only where that is asked for.
  save(folder.path(), {}, 4, 4);
  rank.parameters.with_optimizer = true;
  CHECK_THROWS_WITH(load_newest(folder.path(), rank.parameters, group),
                    Contains("step-5 has only weights: resuming from step 4 would train its steps again") &&
                        Contains("set checkpoint.load_step: 4;"));
  CHECK(load_newest(folder.path(), rank.parameters, group, 4)->manifest.step == 4);
  CHECK(rank.wrong(4) == 0);
  CHECK_THROWS_AS(load_newest(folder.path(), rank.parameters, group, 5), ConfigError);
  rank.parameters.with_optimizer = false;
  CHECK(load_newest(folder.path(), rank.parameters, group)->manifest.step == 5);
}

TEST_CASE("device memory is reached only through copy, in bounded pieces") {
  constexpr size_t kPiece = size_t{1} << 20;
  TemporaryFolder folder;
  std::vector<ParameterSpec> specs = tiny_model();
  specs[0].columns *= 256;
  REQUIRE(static_cast<size_t>(specs[0].parts[0].rows * specs[0].columns) * sizeof(float) > kPiece);
  PatientRanks group;
  TinyRank rank(specs, {});
  rank.fill(1);
  size_t copied = 0, most = 0;
  // The shards pretend to be elsewhere: their addresses are shifted, and only copy knows by how much.
  auto shift = [](void* p) { return static_cast<char*>(p) + (uintptr_t{1} << 50); };
  TinyRank device(specs, {});
  device.fill(1);
  for (HeldShard& shard : device.parameters.shards) {
    for (ShardMemory* memory :
         {&shard.weight, &shard.moments[Moment::exp_avg], &shard.moments[Moment::exp_avg_sq]})
      memory->data = shift(memory->data);
  }
  device.parameters.copy = [&](void* to, const void* from, size_t bytes) {
    auto here = [](const void* p) {
      auto address = reinterpret_cast<uintptr_t>(p);
      return reinterpret_cast<char*>(address > (uintptr_t{1} << 49) ? address - (uintptr_t{1} << 50)
                                                                    : address);
    };
    most = std::max(most, bytes);
    copied += bytes;
    std::copy_n(here(from), bytes, here(to));
  };
  CheckpointSaver saver({.folder = folder.path()}, group);
  saver.save(checkpoint_of(device, 5));
  CHECK(copied == static_cast<size_t>(owned_bytes(rank.parameters)));
  CHECK(most == kPiece);
  load_checkpoint(folder / "step-5", rank.parameters, group);
  CHECK(rank.wrong(1) == 0);
  saver.begin(checkpoint_of(device, 6));  // there is room for a copy of the whole
  saver.finish();
  most = 0;
  load_checkpoint(folder / "step-6", device.parameters, group);
  CHECK(most == kPiece);
  CHECK(copied == 3 * static_cast<size_t>(owned_bytes(rank.parameters)));
}

TEST_CASE("a checkpoint of another model is refused on all ranks, not skipped") {
  TemporaryFolder folder;
  save(folder.path(), {}, 1, 1);
  std::vector<ParameterSpec> tied = tiny_model(true), wide = tiny_model();
  wide[1].parts[0].rows = 21;
  wide.push_back(wide.back());
  wide.back().parts[0].hf_name = "extra";
  std::vector<std::string> unknown(2), other(2);
  run_ranks({1, 2, 1}, [&](PatientRanks& group, ShardCoordinates at) {
    TinyRank a(tied, at), b(wide, at);
    auto rank = static_cast<size_t>(group.rank());
    unknown[rank] = config_error_of([&] { load_newest(folder.path(), a.parameters, group); });
    other[rank] = config_error_of([&] { load_newest(folder.path(), b.parameters, group); });
  });
  for (size_t rank : {0u, 1u}) {
    CHECK_THAT(unknown[rank],
               Contains("does not fit this model: its 'lm_head.weight' is not part of this model"));
    CHECK_THAT(other[rank],
               Contains("'model.layers.0.input_layernorm.weight' is [20], expected [21]; it has no 'extra'"));
  }
  PatientRanks group;
  std::vector<ParameterSpec> twice = tiny_model();
  twice.push_back(twice[0]);
  TinyRank c(twice, {});
  CheckpointSaver saver({.folder = folder.path()}, group);
  CHECK_THROWS_WITH(saver.save(checkpoint_of(c, 2)),
                    Contains("two parameters are named 'model.embed_tokens.weight'"));
}

}  // namespace
}  // namespace ottava::checkpoint
