#include "apps/decide/gemm_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "apps/decide/rehearsal.h"
#include "core/cuda/blas_plans.h"
#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/file.h"
#include "core/log.h"

namespace ottava {
namespace {

namespace fs = std::filesystem;

std::string made_for(const std::string& library) { return "matrix products by " + library; }

fs::path folder_of(std::string_view setting) {
  if (setting != "auto") return setting;
  auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return fs::path(cache) / "ottava";
  if (const std::string home = variable("HOME"); !home.empty()) return fs::path(home) / ".cache" / "ottava";
  return {};
}

// Nothing but whole entries is ever written, so anything else is damage.
Decisions parse(const std::string& file, const std::string& library) {
  Decisions cached = parse_decisions(read_file(file), file);
  if (cached.made_for != made_for(library))
    fail<FileError>("gemm cache", "{} holds {}, expected {}", file, cached.made_for, made_for(library));
  for (const Decisions::Entry& e : cached.entries) {
    if (!e.name.starts_with(kGemmDecisions) || !cuda::BlasPlans::is_algorithm(e.value))
      fail<FileError>("gemm cache", "{}: '{}' = '{}' is no algorithm of a product", file, e.name, e.value);
  }
  return cached;
}

}  // namespace

std::string gemm_cache_file(std::string_view setting, std::string_view library) {
  if (setting == "off") return {};
  const fs::path folder = folder_of(setting);
  if (folder.empty()) return {};
  std::string name = "gemm ";
  for (char c : library) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) || c == '.') {
      name += static_cast<char>(std::tolower(letter));
    } else if (name.back() != '-') {
      name += '-';
    }
  }
  name[4] = '-';
  return (folder / (name + ".json")).string();
}

Decisions read_gemm_cache(const std::string& file, const std::string& library) {
  std::error_code error;
  if (file.empty() || !fs::exists(file, error)) return {};
  try {
    return parse(file, library);
  } catch (const FileError& damage) {
    log::warning("Algorithms of matrix products are measured again and kept anew: {}", damage.what());
    return {};
  }
}

void write_gemm_cache(const std::string& file, const std::string& library,
                      const std::vector<Decisions::Entry>& entries) {
  if (file.empty() || entries.empty()) return;
  Decisions all{.made_for = made_for(library), .entries = {}};
  try {
    fs::create_directories(fs::path(file).parent_path());
    std::error_code error;
    if (fs::exists(file, error)) {
      try {
        all = parse(file, library);  // with what other runs have measured meanwhile
      } catch (const FileError&) {   // was said when it was read
      }
    }
    for (const Decisions::Entry& entry : entries) {
      std::erase_if(all.entries, [&](const Decisions::Entry& e) { return e.name == entry.name; });
      all.entries.push_back(entry);
    }
    std::ranges::sort(all.entries, {}, &Decisions::Entry::name);
    write_file_atomically(file, to_json(all));
  } catch (const std::exception& reason) {
    log::warning(
        "Algorithms of matrix products cannot be kept in {} ({}): set training.gemm_cache to a folder that "
        "can "
        "be written, or to off",
        file, reason.what());
  }
}

}  // namespace ottava
