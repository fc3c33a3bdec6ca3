#include "parallel/checkpoint/verify.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "core/io/file.h"
#include "core/io/folder.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/loader.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/saver.h"
#include "tests/parallel/checkpoint/tiny_model.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

namespace ottava::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

void save(const std::string& folder, int64_t step, int64_t version, std::optional<DType> export_dtype = {}) {
  PatientRanks group;
  TinyRank rank(tiny_model());
  rank.fill(version);
  CheckpointSaver saver({.folder = folder}, group);
  saver.save({.step = step,
              .parameters = rank.parameters,
              .export_dtype = export_dtype,
              .texts = {{"config.json", "{}\n"}, {"empty.txt", ""}}});
}

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    paths.push_back(entry.path().string());
  return paths;
}

/// A manifest's text with `from` replaced by `to`, and the checksum that then fits.
std::string sealed_with(const std::string& text, const std::string& from, const std::string& to) {
  std::string body = text.substr(0, text.size() - (11 + 16 + 4));
  body.replace(body.find(from), from.size(), to);
  return body + "  \"xxh64\": \"" + to_hex(text_checksum(body)) + "\"\n}\n";
}

TEST_CASE("verify sees a change of any byte of any file, and names what changed") {
  TemporaryFolder folder;
  save(folder.path(), 1, 1);
  std::string step = folder / "step-1";
  REQUIRE(verify_checkpoint(step).empty());
  int64_t seen = 0, missed = 0;
  for (const std::string& path : files_of(step)) {
    File file = File::open_for_writing(path);
    int64_t bytes = file.size();
    std::string content = read_file(path);
    // Every byte of small files and headers, a sample of the tensors; one bit each.
    for (int64_t i = 0; i < bytes; i += i < 256 ? 5 : 331) {
      char changed = static_cast<char>(content[static_cast<size_t>(i)] ^ (1 << (i % 8)));
      file.write_at(&changed, 1, i);
      (verify_checkpoint(step).empty() ? missed : seen) += 1;
      file.write_at(&content[static_cast<size_t>(i)], 1, i);
    }
  }
  CHECK(missed == 0);
  CHECK(seen > 300);
  CHECK(verify_checkpoint(step).empty());
}

TEST_CASE("verify names tensors and files") {
  TemporaryFolder folder;
  save(folder.path(), 1, 1);
  std::string step = folder / "step-1";
  SafetensorsFile model(step + "/model.safetensors");
  const SafetensorsEntry& w2 = *model.find("model.layers.0.mlp.down_proj.weight");
  File::open_for_writing(model.path()).write_at("x", 1, model.header().data_begin + w2.begin + 17);
  std::vector<std::string> problems = verify_checkpoint(step);
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0],
             Contains("tensor 'model.layers.0.mlp.down_proj.weight' has changed since it was saved"));
  File::open_for_writing(step + "/config.json").truncate(1);
  fs::remove(step + "/empty.txt");
  File::open_for_writing(step + "/optimizer.safetensors").truncate(5000);
  problems = verify_checkpoint(step);
  REQUIRE(problems.size() == 4);
  CHECK_THAT(problems[0], Contains("optimizer.safetensors has 5000 bytes") && Contains("it is truncated"));
  CHECK_THAT(problems[1], Contains("config.json has 1 byte, the manifest says 3: it is truncated"));
  CHECK_THAT(problems[2], Contains("empty.txt: No such file"));
  fs::remove(step + "/manifest.json");
  CHECK_THAT(verify_checkpoint(step).at(0), Contains("manifest.json: No such file"));
}

TEST_CASE("loading finds the same damage, names it, and takes the checkpoint before") {
  TemporaryFolder folder;
  save(folder.path(), 1, 1);
  save(folder.path(), 2, 2);
  auto load = [&](const TinyLayout& layout, int64_t load_step = -1) {
    std::atomic<int64_t> steps = 0;
    run_ranks(layout, [&](PatientRanks& group, ShardCoordinates at) {
      TinyRank rank(tiny_model(), at);
      int64_t step = load_newest(folder.path(), rank.parameters, group, load_step)->manifest.step;
      steps += rank.wrong(step) == 0 ? step : 1000;
    });
    return steps.load();
  };
  CHECK(load({1, 2, 1}) == 4);
  std::string model = folder / "step-2/model.safetensors";
  File file = File::open_for_writing(model);
  file.write_at("x", 1, file.size() - 3);  // the last rows: only the last rank reads them
  CHECK(load({1, 2, 1}) == 2);
  CHECK(load({4, 1, 1}) == 4);
  CHECK_THROWS_WITH(load({1, 3, 1}, 2), Contains("tensor 'lm_head.weight' has changed since it was saved"));

  file.truncate(file.size() - 1);
  CHECK(load({2, 1, 1}) == 2);
  fs::remove(folder / "step-2/manifest.json");
  CHECK(load({1, 1, 1}) == 1);
  CHECK_THROWS_WITH(load({1, 1, 1}, 2), Contains("step-2 has no manifest.json: it was not saved completely"));
  File::open_for_writing(folder / "step-1/manifest.json").truncate(200);
  CHECK_THROWS_WITH(load({1, 2, 1}), Contains("all checkpoints in") && Contains("are broken") &&
                                         Contains("step-1/manifest.json] the manifest is incomplete"));
}

TEST_CASE("a folder of steps stands for the newest that was saved completely") {
  TemporaryFolder folder;
  const std::string run = folder / "run", steps = run + "/checkpoint";
  save(steps, 1, 1);
  save(steps, 2, 1);
  for (const std::string& path : {run, steps}) CHECK(newest_step_or_itself(path) == steps + "/step-2");
  fs::remove(steps + "/step-2/manifest.json");
  for (const std::string& path : {run, steps}) CHECK(newest_step_or_itself(path) == steps + "/step-1");
  CHECK(newest_step_or_itself(steps + "/step-2") == steps + "/step-2");
  fs::remove(steps + "/step-1/manifest.json");
  CHECK(newest_step_or_itself(run) == steps + "/step-2");
  fs::create_directories(folder / "begun/checkpoint");
  File::create(folder / "begun/.lock");
  CHECK_THROWS_WITH(newest_step_or_itself(folder / "begun"),
                    Contains("begun: this run has saved no checkpoint here; if its checkpoint.folder is "
                             "elsewhere, give that folder"));
  File::create(folder / "begun/config.json");
  CHECK(newest_step_or_itself(folder / "begun") == folder / "begun");
}

TEST_CASE("a folder that is neither of a run nor of a model is refused, and the run in it is named") {
  TemporaryFolder folder;
  fs::create_directories(folder / "first/run/checkpoint");
  File::create(folder / "first/ottava.yaml");
  const auto refusal = [&](const std::string& run) {
    return Contains("first has neither checkpoints nor a model: expected a run's folder" + run +
                    ", a step-N folder or the folder of a Hugging Face model");
  };
  CHECK_THROWS_WITH(newest_step_or_itself(folder / "first"), refusal(""));
  File::create(folder / "first/run/.lock");
  CHECK_THROWS_WITH(newest_step_or_itself(folder / "first"),
                    refusal(" (such as " + (folder / "first/run") + ")"));
  CHECK_THROWS_WITH(newest_step_or_itself(folder / "nothing"), Contains("nothing does not exist"));
  CHECK_THROWS_WITH(newest_step_or_itself(folder / "first/ottava.yaml"),
                    Contains("ottava.yaml is not a folder"));
  File::create(folder / "first/model.safetensors");
  CHECK(newest_step_or_itself(folder / "first") == folder / "first");
}

TEST_CASE("a distributed checkpoint of PyTorch is said to be one, not to be saved incompletely") {
  TemporaryFolder folder;
  const std::string steps = folder / "run/checkpoint", step = steps + "/step-4";
  fs::create_directories(step);
  File::create(step + "/.metadata");
  const auto refusal =
      Contains("step-4 is a distributed checkpoint of PyTorch (it has .metadata): convert it");
  for (const std::string& path : {folder / "run", steps, step})
    CHECK_THROWS_WITH(newest_step_or_itself(path), refusal);
  CHECK_THROWS_WITH(open_checkpoint(step), refusal);
  // Beside a model it says nothing.
  fs::create_directories(folder / "model");
  for (const char* name : {".metadata", "config.json", "model.safetensors"})
    File::create(folder / "model/" + name);
  CHECK(newest_step_or_itself(folder / "model") == folder / "model");
}

TEST_CASE("a checkpoint that a later version saved is refused, not passed over for an earlier one") {
  TemporaryFolder folder;
  for (int step : {4, 5}) save(folder.path(), step, step);
  const std::string path = folder / "step-5/manifest.json";
  write_file_synced(path, sealed_with(read_file(path), "\"version\": 1", "\"version\": 2"));
  const std::vector<ParameterSpec> specs = tiny_model();
  PatientRanks group;
  TinyRank rank(specs, {});
  try {
    load_newest(folder.path(), rank.parameters, group);
    FAIL("loaded");
  } catch (const ConfigError& error) {
    CHECK_THAT(error.what(), Contains("step-5/manifest.json] format version 2 is unknown; this program reads "
                                      "version 1: use the one that saved this checkpoint"));
  }
  CHECK(load_newest(folder.path(), rank.parameters, group, 4)->manifest.step == 4);

  // An older one, which nobody needs.
  TemporaryFolder other;
  for (int step : {4, 5}) save(other.path(), step, step);
  write_file_synced(other / "step-4/manifest.json", sealed_with(read_file(other / "step-4/manifest.json"),
                                                                "\"version\": 1", "\"version\": 2"));
  for (const std::string& name : names_in(other / "step-4"))
    if (name.starts_with("optimizer")) fs::remove(other / "step-4/" + name);
  CHECK(load_newest(other.path(), rank.parameters, group)->manifest.step == 5);
}

TEST_CASE("a step that this user may not look at is set aside, and never deleted") {
  if (::geteuid() == 0) return test::skip("root may look at everything");
  TemporaryFolder folder;
  for (int step : {4, 5, 6}) save(folder.path(), step, step);
  fs::permissions(folder / "step-5", fs::perms::none);
  CHECK(rotate_steps(folder.path(), {.keep_latest_k = 1}, 6) == std::vector<int64_t>{4});
  CHECK(set_aside_after(folder.path(), 4).size() == 2);
  fs::permissions(folder / "step-5.abandoned", fs::perms::owner_all);
  CHECK(fs::exists(folder / "step-5.abandoned/manifest.json"));
}

TEST_CASE("manifests: what is not ours or changed is refused") {
  Manifest manifest;
  manifest.step = 3;
  manifest.files = {{"a.json", 4, 7, 0}};
  std::string text = to_text(manifest);
  CHECK(parse_manifest(text, "m").step == 3);
  CHECK(parse_manifest(text, "m").files[0].checksum == 7);
  CHECK_THROWS_WITH(parse_manifest("", "m"), Contains("[m] the manifest is incomplete"));
  std::string changed = text;
  changed.replace(changed.find("\"step\": 3"), 9, "\"step\": 4");
  CHECK_THROWS_WITH(parse_manifest(changed, "m"), Contains("changed since it was written"));
  auto with = [&](const std::string& from, const std::string& to) { return sealed_with(text, from, to); };
  CHECK(parse_manifest(with("3", "3"), "m").step == 3);
  CHECK_THROWS_WITH(parse_manifest(with("ottava checkpoint", "something else"), "m"),
                    Contains("expected 'ottava checkpoint'"));
  CHECK_THROWS_WITH(parse_manifest(with("a.json", "../a.json"), "m"), Contains("points outside the folder"));
  CHECK_THROWS_WITH(parse_manifest(with("\"bytes\":4", "\"bytes\":-4"), "m"),
                    Contains("cannot have -4 bytes"));
  CHECK_THROWS_WITH(parse_manifest(with("true", "false"), "m"), Contains("is not complete"));
}

TEST_CASE("comparing two folders") {
  TemporaryFolder folder;
  save(folder.path(), 1, 1);
  save(folder.path(), 2, 2);
  save(folder.path(), 3, 1, DType::bf16);
  SafetensorsFolder a(folder / "step-1"), b(folder / "step-2"), narrow(folder / "step-3");
  CHECK(compare_folders(a, a).same());
  FolderDifference d = compare_folders(a, b);
  CHECK_FALSE(d.same());
  CHECK(d.tensors.size() == 14);
  CHECK(d.tensors[0].different > d.tensors[0].elements / 2);
  CHECK(d.tensors[0].max_abs < 1);
  FolderDifference rounded = compare_folders(a, narrow);
  for (const TensorDifference& t : rounded.tensors) {
    CHECK(t.relative < 0x1p-8);
    CHECK(t.max_abs <= 0x1p-10);  // values below 1/2 lie 2^-9 apart in bf16
  }
  CHECK_FALSE(rounded.same());
  FolderDifference other = compare_folders(a, SafetensorsFolder(folder / "step-1", "optimizer"));
  CHECK(other.only_in_a.size() == 14);
  CHECK(other.only_in_b.size() == 28);
}

TEST_CASE("comparing two folders: a NaN stays the largest difference, equal infinities differ by nothing") {
  TemporaryFolder folder;
  for (int64_t step : {1, 2}) save(folder.path(), step, 1);
  const auto set = [&](const std::string& step, const std::string& name, int64_t index, float value) {
    const SafetensorsFile file(folder / (step + "/model.safetensors"));
    File::open_for_writing(file.path())
        .write_at(&value, 4, file.header().data_begin + file.find(name)->begin + 4 * index);
  };
  const std::string with_nan = "model.norm.weight", infinite = "model.layers.0.mlp.down_proj.weight";
  set("step-2", with_nan, 3, std::numeric_limits<float>::quiet_NaN());
  for (const char* step : {"step-1", "step-2"})
    set(step, infinite, 5, std::numeric_limits<float>::infinity());
  set("step-2", infinite, 7, 9);
  const SafetensorsFolder a(folder / "step-1"), b(folder / "step-2");
  for (const TensorDifference& t : compare_folders(a, b).tensors) {
    INFO(t.name);
    CHECK(t.different == (t.name == with_nan || t.name == infinite ? 1 : 0));
    CHECK(std::isnan(t.max_abs) == (t.name == with_nan));
    CHECK(std::isnan(t.relative) == (t.name == with_nan));
    if (t.name == infinite) CHECK((t.max_abs > 8 && t.max_abs < 10));
  }
}

}  // namespace
}  // namespace ottava::checkpoint
