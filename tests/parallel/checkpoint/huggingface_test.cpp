#include "parallel/checkpoint/huggingface.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "core/io/safetensors_folder.h"
#include "parallel/checkpoint/saver.h"
#include "tests/parallel/checkpoint/tiny_model.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace ottava::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

// Saves an HF folder and returns its path.
std::string export_model(const std::string& folder, DType dtype, bool tied = false,
                         int64_t max_file_bytes = 1 << 30) {
  PatientRanks group;
  TinyRank rank(tiny_model(tied));
  rank.fill(1);
  rank.parameters.with_optimizer = false;
  CheckpointSaver saver({.folder = folder, .max_file_bytes = max_file_bytes}, group);
  saver.save({.step = 1, .parameters = rank.parameters, .export_dtype = dtype, .texts = {}});
  return folder + "/step-1";
}

// One file with these tensors, all elements `value`.
void write_model(const std::string& folder,
                 const std::vector<std::pair<std::string, std::vector<int64_t>>>& tensors,
                 float value = 0.25f) {
  fs::create_directories(folder);
  SafetensorsHeader header;
  int64_t end = 0;
  for (const auto& [name, shape] : tensors) {
    header.tensors.push_back(make_safetensors_entry(name, DType::f32, shape, end));
    end = header.tensors.back().end;
  }
  std::string bytes = make_safetensors_header(header);
  for (int64_t i = 0; i < end / 4; ++i) bytes.append(reinterpret_cast<const char*>(&value), 4);
  File::create(folder + "/model.safetensors").write_at(bytes.data(), bytes.size(), 0);
}

std::vector<std::pair<std::string, std::vector<int64_t>>> tensors_of(
    const std::vector<ParameterSpec>& specs) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;
  for (const ParameterSpec& spec : specs) {
    for (const ParameterPart& part : spec.parts) {
      tensors.push_back({part.hf_name, spec.is_vector ? std::vector<int64_t>{part.rows}
                                                      : std::vector<int64_t>{part.rows, spec.columns}});
    }
  }
  return tensors;
}

TEST_CASE("HF folders: f32, bf16 and f16, one file or many, onto any layout") {
  std::vector<ParameterSpec> specs = tiny_model();
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (int64_t max_file_bytes : {int64_t{3000}, int64_t{1} << 30}) {
      TemporaryFolder folder;
      std::string path = export_model(folder.path(), dtype, false, max_file_bytes);
      double bound = dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 0x1p-10 : 0x1p-13;
      for (TinyLayout layout : {TinyLayout{1, 1, 1}, TinyLayout{4, 2, 1}}) {
        std::atomic<int64_t> wrong = 0;
        run_ranks(layout, [&](PatientRanks& group, ShardCoordinates at) {
          TinyRank rank(specs, at), exact(specs, at);
          rank.clear();
          exact.fill(1);
          HuggingFaceLoad load = load_huggingface(path, rank.parameters, group);
          wrong += load.ignored.size() + (load.stored_types.size() != 1);
          for (size_t s = 0; s < specs.size(); ++s) {
            auto* a = static_cast<float*>(rank.parameters.shards[s].weight.data);
            auto* b = static_cast<float*>(exact.parameters.shards[s].weight.data);
            Shape slice = tensor_parallel_shape(specs[s], at.tp_size);
            int64_t rows = shard_rows(slice[0], at.shard_rank, at.shard_size).size();
            for (int64_t i = 0; i < rows * (specs[s].is_vector ? 1 : slice[1]); ++i) {
              wrong += !(std::abs(a[i] - b[i]) <= bound);
            }
          }
        });
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("HF folders: in one that a run has saved, damaged weights and a changed config.json are refused") {
  TemporaryFolder folder;
  const std::vector<ParameterSpec> specs = tiny_model();
  PatientRanks alone;
  TinyRank saved(specs, {});
  saved.fill(1);
  saved.parameters.with_optimizer = false;
  CheckpointSaver({.folder = folder.path()}, alone)
      .save(
          {.step = 1, .parameters = saved.parameters, .texts = {{"config.json", "{}"}, {"notes.txt", "a"}}});
  const std::string path = folder / "step-1";
  auto load = [&](TinyLayout layout) {
    run_ranks(layout, [&](PatientRanks& group, ShardCoordinates at) {
      TinyRank rank(specs, at);
      load_huggingface(path, rank.parameters, group);
    });
  };
  auto write = [&](const std::string& name, std::string_view text, int64_t at = 0) {
    File::open_for_writing(path + "/" + name).write_at(text.data(), text.size(), at);
  };
  write("notes.txt", "b");
  load({4, 2, 1});
  SafetensorsFile file(path + "/model.safetensors");
  const int64_t at = file.header().data_begin + file.find("model.layers.0.mlp.down_proj.weight")->begin + 400;
  char byte = 0;
  file.file().read_at(&byte, 1, at);
  write("model.safetensors", std::string(1, static_cast<char>(byte ^ 1)), at);
  for (TinyLayout layout : {TinyLayout{1, 1, 1}, TinyLayout{4, 2, 1}}) {
    CHECK_THROWS_WITH(load(layout),
                      Contains("model.safetensors: tensor 'model.layers.0.mlp.down_proj.weight' "
                               "has changed since it was saved"));
  }
  write("model.safetensors", std::string(1, byte), at);
  write("config.json", "[]");
  CHECK_THROWS_WITH(load({4, 2, 1}), Contains("config.json: its content has changed since it was saved"));
  fs::remove(path + "/manifest.json");
  load({4, 2, 1});
}

TEST_CASE("HF folders: what is missing, unexpected or of another shape is listed") {
  TemporaryFolder folder;
  std::vector<ParameterSpec> specs = tiny_model();
  PatientRanks group;
  TinyRank rank(specs, {});
  auto tensors = tensors_of(specs);
  tensors.erase(tensors.begin() + 2);  // q_proj
  tensors[0].second = {57, 20};        // embedding
  tensors.pop_back();                  // lm_head
  tensors.push_back({"extra", {3}});
  write_model(folder / "a", tensors);
  CHECK_THROWS_WITH(load_huggingface(folder / "a", rank.parameters, group),
                    Contains("'model.embed_tokens.weight' is [57, 20], expected [56, 20]") &&
                        Contains("it has no 'model.layers.0.self_attn.q_proj.weight'") &&
                        Contains("it has no 'lm_head.weight' (tied embeddings?)") &&
                        Contains("its 'extra' is not part of this model"));
  CHECK_THROWS_AS(load_huggingface(folder / "a", rank.parameters, group), ConfigError);
  for (int i = 0; i < 6; ++i) tensors.push_back({"more" + std::to_string(i), {1}});
  write_model(folder / "b", tensors);
  CHECK_THROWS_WITH(load_huggingface(folder / "b", rank.parameters, group), Contains("; and 6 more"));
  CHECK_THROWS_WITH(load_huggingface(folder / "none", rank.parameters, group), Contains("is not a folder"));
}

TEST_CASE("HF folders: a tied model takes an lm_head that equals the embedding, and no other") {
  TemporaryFolder folder;
  std::vector<ParameterSpec> tied = tiny_model(true);
  PatientRanks group;
  TinyRank rank(tied, {});
  CHECK(load_huggingface(export_model(folder.path(), DType::f32, true), rank.parameters, group)
            .ignored.empty());
  auto tensors = tensors_of(tiny_model());
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {1}});
  write_model(folder / "same", tensors);
  CHECK(load_huggingface(folder / "same", rank.parameters, group).ignored ==
        std::vector<std::string>{"lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"});
  File file = File::open_for_writing(folder / "same/model.safetensors");
  file.write_at("x", 1, SafetensorsFile(folder / "same/model.safetensors").header().data_begin + 77);
  CHECK_THROWS_WITH(
      load_huggingface(folder / "same", rank.parameters, group),
      Contains("its 'lm_head.weight' is not part of this model and differs from the embedding"));
}

TEST_CASE(
    "HF folders: weights that are not finite are refused with their place, on the rank that holds them") {
  TemporaryFolder folder;
  std::vector<ParameterSpec> specs = tiny_model();
  write_model(folder.path(), tensors_of(specs));
  SafetensorsFile file(folder / "model.safetensors");
  auto poison = [&](const std::string& name, int64_t index, float value) {
    const SafetensorsEntry& entry = *file.find(name);
    File::open_for_writing(file.path())
        .write_at(&value, 4, file.header().data_begin + entry.begin + 4 * index);
  };
  poison("model.layers.0.mlp.down_proj.weight", 39 * 5, std::numeric_limits<float>::quiet_NaN());
  CHECK_THROWS_WITH(
      run_ranks({2, 2, 1},
                [&](PatientRanks& group, ShardCoordinates at) {
                  TinyRank rank(specs, at);
                  load_huggingface(folder.path(), rank.parameters, group);
                }),
      Contains("rank 1: ") && Contains("'model.layers.0.mlp.down_proj.weight' is not finite at [4, 35]"));
  poison("model.layers.0.mlp.down_proj.weight", 39 * 5, 0);
  poison("model.norm.weight", 19, std::numeric_limits<float>::infinity());
  PatientRanks group;
  TinyRank rank(specs, {});
  CHECK_THROWS_WITH(load_huggingface(folder.path(), rank.parameters, group),
                    Contains("'model.norm.weight' is not finite at [19]"));
}

TEST_CASE("exports take only float types") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH(export_model(folder.path(), DType::e4m3),
                    Contains("export_dtype is e4m3, expected f32, bf16 or f16"));
}

TEST_CASE("a weight that float16 has no number for is refused by name, and no checkpoint is left") {
  PatientRanks group;
  TinyRank rank(tiny_model());
  rank.fill(1);
  rank.parameters.with_optimizer = false;
  auto* weight = static_cast<float*>(rank.parameters.shards[0].weight.data);
  const auto save = [&](DType dtype) {
    const TemporaryFolder folder;
    CheckpointSaver saver({.folder = folder.path()}, group);
    const std::string message = test::message_of(
        [&] { saver.save({.step = 1, .parameters = rank.parameters, .export_dtype = dtype, .texts = {}}); });
    CHECK(fs::exists(folder / "step-1") == (message == "no error"));
    return message;
  };
  weight[5] = 65519;  // rounds to 65504
  CHECK(save(DType::f16) == "no error");
  weight[5] = -70000;
  CHECK_THAT(save(DType::f16),
             Contains("[checkpoint] element 5 of ") &&
                 Contains(" is -70000, but the largest float16 number is 65504: set export_dtype to "
                          "bfloat16 or float32"));
  CHECK(save(DType::bf16) == "no error");
}

}  // namespace
}  // namespace ottava::checkpoint
