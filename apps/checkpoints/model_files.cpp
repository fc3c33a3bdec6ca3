#include "apps/checkpoints/model_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "apps/config/resolved_model.h"
#include "apps/data/chat_data.h"
#include "core/contains.h"
#include "core/data/chat/template_file.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/json.h"
#include "core/io/system_failure.h"
#include "models/hf_config.h"
#include "models/llama/read_hf_config.h"
#include "parallel/checkpoint/manifest.h"

namespace ottava {
namespace fs = std::filesystem;

namespace {

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return contains(names, name);
}

bool is_weights(std::string_view name) {
  return is_one_of(fs::path(name).extension().string(), {".safetensors", ".bin", ".pt", ".pth", ".ckpt",
                                                         ".gguf", ".h5", ".msgpack", ".onnx", ".npz"}) ||
         name.ends_with(".index.json");
}

// Of a folder that is itself a checkpoint of a run: these are written anew.
bool is_checkpoint_state(std::string_view name) {
  return name == checkpoint::kManifestName ||
         is_one_of(name, {"config.json", "ottava_config.yaml", "decisions.json", "training_state.json",
                          "float8_history.json"});
}

// What transformers may keep beside tokenizer.json.
bool belongs_to_tokenizer(std::string_view name) {
  return is_one_of(name, {"chat_template.jinja", "special_tokens_map.json", "added_tokens.json", "vocab.json",
                          "merges.txt"});
}

using Files = std::vector<checkpoint::TextFile>;

template <class Wanted>
void add_files(const fs::path& folder, const Wanted& wanted, Files& out) {
  for (const std::string& name : names_in(folder.string())) {
    const bool is_new = std::ranges::none_of(out, [&](const auto& file) { return file.name == name; });
    if (!is_new || !wanted(name)) continue;
    std::error_code error;
    const fs::path path = folder / name;
    if (fs::is_regular_file(path, error)) out.push_back({name, read_file(path.string())});
    if (is_of_system(error.value()))
      fail_for_system(error.value(), "checkpoint", "cannot look at " + path.string());
  }
}

// In the place of one of that name.
void set_file(Files& files, std::string_view name, std::string content) {
  std::erase_if(files, [&](const checkpoint::TextFile& file) { return file.name == name; });
  files.push_back({std::string(name), std::move(content)});
}

// At the end, without the one of that name that there was.
Json with_member(const Json& object, std::string_view name, Json value) {
  Json out(Json::Object{});
  for (const auto& [key, member] : object.as_object("the file"))
    if (key != name) out.set(key, member);
  return out.set(name, std::move(value));
}

std::string dtype_name(DType stored) {
  return stored == DType::bf16 ? "bfloat16" : stored == DType::f16 ? "float16" : "float32";
}

std::vector<std::string> differences_from(const HfConfig& theirs, const Experiment& e) {
  return differences(theirs, hf_config_of(e.shape.model, theirs.max_position_embeddings));
}

// `folder` is where the model came from, or its tokenizer.
void add_chat_files(const Experiment& e, const fs::path& folder, Files& out) {
  constexpr std::string_view kTemplate = "chat_template.jinja", kGeneration = "generation_config.json";
  if (!reads_chats(e.config.training)) return;
  const std::optional<data::ChatOptions> chat = chat_options(e);
  if (!chat) return;
  const std::optional<data::TemplateFile> own = data::read_template_file(folder);
  if (!own || own->style != chat->style) {
    set_file(out, kTemplate, std::string(data::jinja_of(chat->style)));
  }
  const std::string path = (folder / kGeneration).string();
  const Json before = is_there(path) ? Json::parse(read_file(path), path) : Json(Json::Object{});
  const data::ChatEncoder encoder(e.tokenizer, {.chat = chat});
  std::vector<int64_t> stops{encoder.end_of_turn()};
  const auto add = [&](int64_t id) {
    if (!contains(stops, id)) stops.push_back(id);
  };
  if (auto eos = e.tokenizer->eos_id()) add(*eos);
  std::ranges::for_each(eos_token_ids(before, path), add);
  Json now = with_member(before, "eos_token_id", Json::Array(stops.begin(), stops.end()));
  if (auto bos = e.tokenizer->bos_id(); bos && !now.find("bos_token_id"))
    now.set("bos_token_id", int64_t{*bos});
  set_file(out, kGeneration, now.dump(2) + "\n");
}

constexpr std::string_view kTokenizerConfig = "tokenizer_config.json";

Json tokenizer_config(const Files& files) {
  const auto file = std::ranges::find(files, kTokenizerConfig, &checkpoint::TextFile::name);
  return file == files.end() ? Json(Json::Object{}) : Json::parse(file->content, kTokenizerConfig);
}

// Without a class there, transformers 5 cuts the texts of a Qwen3 model by Qwen's own pattern.
void set_tokenizer_class(const Experiment& e, Files& out) {
  if (hf_family_of(e.shape.model) != HfFamily::qwen3 || e.tokenizer->cuts_as_qwen2()) return;
  const Json before = tokenizer_config(out);
  if (const Json* given = before.find("tokenizer_class"); given && !given->is_null()) return;
  set_file(out, kTokenizerConfig,
           with_member(before, "tokenizer_class", "PreTrainedTokenizerFast").dump(2) + "\n");
}

// Who prompts or scores the model by its folder begins texts as training did: transformers 5 goes by the
// template of tokenizer.json, others by add_bos_token.
void set_add_bos(const Experiment& e, Files& out) {
  const bool add_bos = texts_begin_with_bos(e);
  checkpoint::TextFile& definition = out.front();
  definition.content = e.tokenizer->edited_json(definition.content, add_bos);
  const Json before = tokenizer_config(out);
  const Json* given = before.find("add_bos_token");
  if (add_bos == (given && given->is_bool() ? given->as_bool(kTokenizerConfig) : e.tokenizer->adds_bos()))
    return;
  set_file(out, kTokenizerConfig, with_member(before, "add_bos_token", add_bos).dump(2) + "\n");
}

}  // namespace

ModelFiles model_files(const Experiment& e, DType exported) {
  ModelFiles out;
  if (e.tokenizer) {
    for (const fs::path& file : e.tokenizer->files())
      out.others.push_back({file.filename().string(), read_file(file.string())});
    if (!e.tokenizer->files().empty()) {
      set_add_bos(e, out.others);
      set_tokenizer_class(e, out.others);
    }
  }
  const int64_t positions = longest_sequence(e.config, e.shape.model);
  if (const std::optional<std::string> path = source_config_path(e.config)) {
    const std::string text = read_file(*path);
    HfConfig now = hf_config_of(e.shape.model, positions);
    const auto edited = [&](DType stored) {
      now.dtype = dtype_name(stored);
      return edit_hf_config(text, *path, now);
    };
    out.config_json = edited(DType::f32).json;
    HfConfigEdit edit = edited(exported);
    out.exported_config_json = std::move(edit.json);
    out.changes = std::move(edit.changes);
    const fs::path folder = fs::path(*path).parent_path();
    add_files(
        folder, [](std::string_view name) { return !is_weights(name) && !is_checkpoint_state(name); },
        out.others);
    add_chat_files(e, folder, out.others);
    return out;
  }
  HfConfig now = hf_config_of(e.shape.model, positions);
  if (e.tokenizer) {
    now.bos_token_id = e.tokenizer->bos_id();
    if (auto eos = e.tokenizer->eos_id()) now.eos_token_ids = {*eos};
    if (!e.tokenizer->files().empty()) {
      const fs::path folder = e.tokenizer->files()[0].parent_path();
      add_files(folder, belongs_to_tokenizer, out.others);
      add_chat_files(e, folder, out.others);
    }
  }
  now.dtype = dtype_name(DType::f32);
  out.config_json = to_json(now);
  now.dtype = dtype_name(exported);
  out.exported_config_json = to_json(now);
  return out;
}

std::vector<std::string> model_differences(const Experiment& e, const std::string& path) {
  const std::string file = path + "/config.json";
  if (!is_there(file)) return {};
  return differences_from(parse_hf_config(read_file(file), file), e);
}

void require_same_model(const Experiment& e, const std::string& path) {
  const std::vector<std::string> differences = model_differences(e, path);
  if (differences.empty()) return;
  if (const std::optional<checkpoint::Manifest> manifest = checkpoint::find_manifest(path)) {
    for (const checkpoint::Manifest::File& file : manifest->files)
      if (file.name == "config.json") checkpoint::check_file(path, file);  // damage may say so, too
  }
  fail<ConfigError>("checkpoint",
                    "{} has another model than this configuration: {} (config.json there, and here): restore "
                    "the section model, or, if the shapes are the same, start a new run in another "
                    "job.dump_folder with checkpoint.initial_load_path set to this checkpoint",
                    path, fmt::join(differences, ", "));
}

void require_loadable(const ModelFiles& files, const Experiment& e) {
  std::string why;
  try {
    const HfConfig saved = parse_hf_config(files.config_json, "config.json");
    why = fmt::format("{}", fmt::join(differences_from(saved, e), ", "));
  } catch (const FileError& error) {
    why = error.what();
  }
  if (why.empty()) return;
  fail<ConfigError>(
      "model", "this run could not load the checkpoints that it would save: {}; change the section model",
      why);
}

}  // namespace ottava
