#include <filesystem>
#include <functional>
#include <thread>

#include "core/io/atomic_file.h"
#include "core/io/safetensors_folder.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/loader.h"
#include "parallel/checkpoint/saver.h"
#include "parallel/thread/thread_communicator.h"
#include "tests/parallel/checkpoint/tiny_model.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace ottava::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

const TinyLayout kLayouts[] = {{1, 1, 1}, {1, 3, 1}, {1, 8, 1}, {2, 1, 1}, {4, 1, 1},
                               {8, 1, 1}, {2, 3, 1}, {4, 2, 2}, {1, 2, 2}};

Checkpoint checkpoint_of(const TinyRank& rank, int64_t step) {
  return {.step = step, .parameters = rank.parameters, .texts = {{"config.json", "{}\n"}}, .copies = {}};
}

void save(const std::string& folder, const TinyLayout& layout, int64_t step, int64_t version,
          SaveOptions options = {}) {
  options.folder = folder;
  std::vector<ParameterSpec> specs = tiny_model();
  run_ranks(layout, [&](RankGroup& group, ShardCoordinates at) {
    TinyRank rank(specs, at);
    rank.fill(version);
    CheckpointSaver saver(options, group);
    saver.save(checkpoint_of(rank, step));
  });
}

// Loads on one rank and returns the step, or -1.
int64_t load(const std::string& folder, int64_t version, int64_t load_step = -1) {
  std::vector<ParameterSpec> specs = tiny_model();
  RankGroup group;
  TinyRank rank(specs, {});
  auto loaded = load_newest(folder, rank.parameters, group, load_step);
  if (!loaded) return -1;
  CHECK(rank.wrong(version) == 0);
  return loaded->manifest.step;
}

// The message of the error that f throws; empty for none and for errors of another type. Ranks are threads
// and must not use the test's assertions.
template <class E>
std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception&) {
  }
  return "";
}
std::string config_error_of(const std::function<void()>& f) { return message_of<ConfigError>(f); }
std::string file_error_of(const std::function<void()>& f) { return message_of<FileError>(f); }

std::string all_bytes(const std::string& folder) {
  std::string text;
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "model.safetensors.index.json"}) {
    text += read_file(folder + "/" + name);
  }
  return text;
}

TEST_CASE("a checkpoint of any layout loads into any other, and its bytes do not depend on the layout") {
  TemporaryFolder folder;
  std::vector<ParameterSpec> specs = tiny_model();
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
      run_ranks(to, [&](RankGroup& group, ShardCoordinates at) {
        TinyRank rank(specs, at);
        rank.clear();
        loaded += load_newest(folder.path(), rank.parameters, group)->manifest.step;
        wrong += rank.wrong(3);
      });
      CHECK(wrong == 0);
      CHECK(loaded == 10 * to.world());
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
    run_thread_ranks({.ranks = layout.world()}, [&](Communicator& world) {
      TinyRank rank(specs, layout.at(world.rank()));
      rank.fill(1);
      RankGroup group(world);
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
  RankGroup group;
  TinyRank rank(specs, {}, DType::bf16);
  rank.fill(1);
  CheckpointSaver(SaveOptions{.folder = folder.path()}, group).save(checkpoint_of(rank, 5));
  TinyRank same(specs, {}, DType::bf16), wide(specs, {}, DType::f32);
  load_checkpoint(folder / "step-5", same.parameters, group);
  CHECK(same.wrong(1) == 0);
  load_checkpoint(folder / "step-5", wide.parameters, group);
  auto narrow = static_cast<const bf16*>(same.parameters.shards[0].exp_avg.data);
  auto f32 = static_cast<const float*>(wide.parameters.shards[0].exp_avg.data);
  for (int i = 0; i < 56 * 20; ++i) REQUIRE(f32[i] == static_cast<float>(narrow[i]));
}

TEST_CASE("a model without optimizer state starts a run but does not continue one") {
  TemporaryFolder folder;
  std::vector<ParameterSpec> specs = tiny_model();
  RankGroup group;
  TinyRank rank(specs, {});
  rank.fill(1);
  rank.parameters.with_optimizer = false;
  CheckpointSaver(SaveOptions{.folder = folder.path()}, group).save(checkpoint_of(rank, 5));
  rank.clear();
  load_checkpoint(folder / "step-5", rank.parameters, group);
  CHECK(rank.wrong(1) == 0);
  rank.parameters.with_optimizer = true;
  CHECK_THROWS_WITH(load_checkpoint(folder / "step-5", rank.parameters, group),
                    Contains("holds no optimizer state"));
  CHECK_THROWS_AS(load_newest(folder.path(), rank.parameters, group), ConfigError);
  // With an older one that can be continued, that is taken: a run that was finished by an export can go on.
  save(folder.path(), {}, 4, 4);
  CHECK(load(folder.path(), 4) == 4);
  CHECK_THROWS_AS(load_newest(folder.path(), rank.parameters, group, 5), ConfigError);
  rank.parameters.with_optimizer = false;
  CHECK(load_newest(folder.path(), rank.parameters, group)->manifest.step == 5);
}

TEST_CASE("device memory is reached through copy alone, in bounded pieces") {
  TemporaryFolder folder;
  std::vector<ParameterSpec> specs = tiny_model();
  RankGroup group;
  TinyRank rank(specs, {});
  rank.fill(1);
  size_t copied = 0;
  // The shards pretend to be elsewhere: their addresses are shifted, and only copy knows by how much.
  auto shift = [](void* p) { return static_cast<char*>(p) + (uintptr_t{1} << 50); };
  TinyRank device(specs, {});
  device.fill(1);
  for (ParameterShard& shard : device.parameters.shards) {
    for (ShardMemory* memory : {&shard.weight, &shard.exp_avg, &shard.exp_avg_sq})
      memory->data = shift(memory->data);
  }
  device.parameters.copy = [&](void* to, const void* from, size_t bytes) {
    auto here = [](const void* p) {
      auto address = reinterpret_cast<uintptr_t>(p);
      return reinterpret_cast<char*>(address > (uintptr_t{1} << 49) ? address - (uintptr_t{1} << 50)
                                                                    : address);
    };
    CHECK(bytes <= size_t{1} << 20);
    copied += bytes;
    std::copy_n(here(from), bytes, here(to));
  };
  CheckpointSaver saver({.folder = folder.path()}, group);
  saver.save(checkpoint_of(device, 5));
  CHECK(copied == static_cast<size_t>(Snapshot::bytes(rank.parameters)));
  load_checkpoint(folder / "step-5", rank.parameters, group);
  CHECK(rank.wrong(1) == 0);
  saver.begin(checkpoint_of(device, 6));
  saver.finish();
  load_checkpoint(folder / "step-6", device.parameters, group);
  CHECK(copied == 3 * static_cast<size_t>(Snapshot::bytes(rank.parameters)));
}

TEST_CASE("asynchronous saving keeps the values of the moment it began") {
  TemporaryFolder folder;
  std::vector<ParameterSpec> specs = tiny_model();
  std::atomic<int> as_expected = 0;
  run_ranks({2, 2, 1}, [&](RankGroup& group, ShardCoordinates at) {
    TinyRank rank(specs, at);
    CheckpointSaver saver({.folder = folder.path()}, group);
    as_expected += saver.poll();
    for (int64_t step : {1, 2, 3}) {
      rank.fill(step);
      saver.begin(checkpoint_of(rank, step));
      as_expected += saver.in_flight();
      rank.clear();  // training goes on
      while (!saver.poll()) std::this_thread::yield();
      as_expected += !saver.in_flight();
    }
    rank.fill(4);
    saver.begin(checkpoint_of(rank, 4));
    rank.fill(5);
    saver.begin(checkpoint_of(rank, 5));  // finishes step 4
    saver.finish();
  });
  CHECK(as_expected == 4 * 7);
  for (int64_t step : {1, 2, 3, 4, 5}) CHECK(load(folder.path(), step, step) == step);
}

TEST_CASE("a saver that ends with a save in flight leaves only a temporary folder") {
  TemporaryFolder folder;
  save(folder.path(), {}, 1, 1);
  {
    std::vector<ParameterSpec> specs = tiny_model();
    RankGroup group;
    TinyRank rank(specs, {});
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
  RankGroup group;
  CHECK_THROWS_WITH(CheckpointSaver({.folder = "x", .keep_latest_k = 1}, group),
                    Contains("keep_latest_k is 1"));
  CHECK_THROWS_WITH(CheckpointSaver({.folder = "x", .keep_latest_k = -1}, group),
                    Contains("keep_latest_k is -1"));
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
}

TEST_CASE("steps are listed by number") {
  TemporaryFolder folder;
  for (const char* name : {"step-10", "step-9", "step-100", "step-x", "step-", "step-5.tmp", "step--3",
                           "other", "step-7.deleted"}) {
    fs::create_directory(folder / name);
  }
  std::vector<SavedStep> steps = list_steps(folder.path());
  REQUIRE(steps.size() == 3);
  CHECK(steps[0].step == 9);
  CHECK(steps[2].path == folder / "step-100");
  CHECK(list_steps(folder / "none").empty());
}

TEST_CASE("a checkpoint of another model is refused on all ranks, not skipped") {
  TemporaryFolder folder;
  save(folder.path(), {}, 1, 1);
  std::vector<ParameterSpec> tied = tiny_model(true), wide = tiny_model();
  wide[1].parts[0].rows = 21;
  wide.push_back(wide.back());
  wide.back().parts[0].hf_name = "extra";
  std::vector<std::string> unknown(2), other(2);
  run_ranks({1, 2, 1}, [&](RankGroup& group, ShardCoordinates at) {
    TinyRank a(tied, at), b(wide, at);
    auto rank = static_cast<size_t>(group.rank());
    unknown[rank] = config_error_of([&] { load_newest(folder.path(), a.parameters, group); });
    other[rank] = config_error_of([&] { load_newest(folder.path(), b.parameters, group); });
  });
  for (size_t rank : {0u, 1u}) {
    CHECK_THAT(unknown[rank], Contains("is not of this model: its 'lm_head.weight' is unknown here"));
    CHECK_THAT(other[rank],
               Contains("'model.layers.0.input_layernorm.weight' is [20], expected [21]; it has no 'extra'"));
  }
  RankGroup group;
  std::vector<ParameterSpec> twice = tiny_model();
  twice.push_back(twice[0]);
  TinyRank c(twice, {});
  CheckpointSaver saver({.folder = folder.path()}, group);
  CHECK_THROWS_WITH(saver.save(checkpoint_of(c, 2)),
                    Contains("two parameters are named 'model.embed_tokens.weight'"));
}

TEST_CASE("requests that cannot be met are refused") {
  TemporaryFolder folder;
  std::vector<ParameterSpec> specs = tiny_model();
  RankGroup group;
  TinyRank rank(specs, {});
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
  checkpoint.copies = {{"tokenizer.json", folder / "none"}};
  CHECK_THROWS_WITH(saver.save(checkpoint), Contains("none: No such file"));
  CHECK(fs::is_empty(folder.path()));  // the failed save gave its space back
  checkpoint.copies = {};
  checkpoint.parameters.shards[2].exp_avg.data = nullptr;
  CHECK_THROWS_WITH(saver.save(checkpoint), Contains("q_proj.weight.exp_avg' has no memory on this rank"));
  checkpoint.parameters.shards.pop_back();
  CHECK_THROWS_WITH(saver.save(checkpoint), Contains("there are 9 parameters and 8 shards"));
  CHECK(load(folder.path(), 1) == -1);
  CHECK_THROWS_WITH(load(folder.path(), 1, 12), Contains("step-12 does not exist"));
  write_file_atomically(folder / "file", "");
  CheckpointSaver blocked({.folder = folder / "file/below"}, group);
  CHECK_THROWS_AS(blocked.save(checkpoint_of(rank, 1)), std::exception);
}

TEST_CASE("small files and copies lie beside the weights") {
  TemporaryFolder folder;
  write_file_atomically(folder / "tokenizer.json", "tok");
  std::vector<ParameterSpec> specs = tiny_model();
  RankGroup group;
  TinyRank rank(specs, {});
  rank.fill(1);
  Checkpoint checkpoint = checkpoint_of(rank, 1);
  checkpoint.copies = {{"tokenizer.json", folder / "tokenizer.json"}};
  CheckpointSaver(SaveOptions{.folder = folder.path()}, group).save(checkpoint);
  CHECK(read_file(folder / "step-1/tokenizer.json") == "tok");
  CHECK(read_file(folder / "step-1/config.json") == "{}\n");
}

TEST_CASE("a shared folder is seen by all ranks; one rank that fails stops all with its words") {
  TemporaryFolder folder;
  std::vector<std::string> texts, messages(3), refusals(3), others(3);
  std::vector<uint64_t> sums;
  run_ranks({1, 3, 1}, [&](RankGroup& group, ShardCoordinates) {
    check_shared_folder(folder / "new/checkpoints", group);
    auto rank = static_cast<size_t>(group.rank());
    std::vector<std::string> gathered = group.all_gather(fmt::format("r{}", rank));
    std::vector<uint64_t> summed = {~uint64_t{0}, 1, uint64_t{1} << 63};
    group.sum(summed);
    if (rank == 2) texts = gathered, sums = summed;
    messages[rank] = file_error_of([&] {
      group.together([&] {
        if (rank > 0) fail<FileError>("x", "rank {} is unwell", rank);
      });
    });
    refusals[rank] = config_error_of([&] {
      group.together([&] {
        if (rank == 2) fail<ConfigError>("x", "no");
      });
    });
    others[rank] = file_error_of([&] { group.on_rank_0([] { throw std::bad_alloc(); }); });
    group.together([] {});
  });
  CHECK(texts == std::vector<std::string>{"r0", "r1", "r2"});
  CHECK(sums == std::vector<uint64_t>{~uint64_t{0} * 3, 3, (uint64_t{1} << 63) * 3});
  for (size_t rank : {0u, 1u, 2u}) {
    CHECK_THAT(messages[rank], Contains("rank 1: [x] rank 1 is unwell"));
    CHECK_THAT(refusals[rank], Contains("rank 2: [x] no"));
    CHECK_THAT(others[rank], Contains("rank 0: std::bad_alloc"));
  }
  CHECK(fs::is_empty(folder / "new/checkpoints"));
  RankGroup group;
  write_file_atomically(folder / "file", "");
  CHECK_THROWS_WITH(check_shared_folder(folder / "file/x", group), Contains("cannot create"));
}

TEST_CASE("the checksum is a sum over elements of XXH64 of their bits, seeded with their index") {
  float values[3] = {1.0f, -2.0f, 0.5f};
  auto sum = [&](int64_t first, size_t count) { return element_checksum(values + first, {4, first, count}); };
  CHECK(sum(0, 3) == sum(0, 1) + sum(1, 2));
  CHECK(sum(0, 1) != element_checksum(values, {4, 1, 1}));
  // Reference: xxhash.xxh64(struct.pack('<f', 1.0), seed=0) and (struct.pack('<I', 0x3f80), seed=7) in
  // Python.
  CHECK(sum(0, 1) == 0x7b54265d12bf1ccdu);
  uint16_t half = 0x3f80;
  CHECK(element_checksum(&half, {2, 7, 1}) == 0xd1d41ed3779db29bu);
  CHECK_THROWS_WITH(element_checksum(values, {8, 0, 1}), Contains("elements have 8 bytes"));
  CHECK(from_hex(to_hex(0x123456789abcdef0u), "x") == 0x123456789abcdef0u);
  CHECK_THROWS_WITH(from_hex("12", "x"), Contains("not a checksum"));
  CHECK_THROWS_WITH(from_hex("123456789abcdefg", "x"), Contains("not a checksum"));
}

}  // namespace
}  // namespace ottava::checkpoint
