#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "core/data/data_file.h"

namespace ottava::data {

/// Separates documents in plain text, wherever it occurs.
inline constexpr std::string_view kTextSeparator = "<|endoftext|>";
/// If a line is longer than this, the file is taken not to be JSON lines.
inline constexpr size_t kMaxLineBytes = 256 << 20;

/// Where a block may be cut: given a file's bytes from some offset on (up to its end if `ended`), how far
/// from there the next document begins. Nothing: more bytes are needed to know. The result depends on nothing
/// before the offset, so the block that ends there and the block that begins there agree.
///   JSON lines: after the next line end. The first `looked` bytes are known to hold none.
///   Text: after the next separator, or at the file's end, within 256 KiB; failing that after the next blank
///   line (two line feeds in a row), else line end, else space within 16 KiB, else before the next UTF-8
///   character.
std::optional<size_t> find_cut(Format format, std::string_view bytes, bool ended, size_t looked = 0);

/// Calls visit(begin, end) for each document in `bytes`, which start and end at cuts. JSON lines: one
/// document per non-blank line, without its line end. Text: what lies between separators, without the line
/// ends around them; if there is no separator, pieces of at most `max_text_bytes`, cut after a blank line if
/// there is one in the second half, else after a line or word. Documents without any visible character are
/// left out.
void split_documents(Format format, std::string_view bytes, size_t max_text_bytes,
                     const std::function<void(size_t begin, size_t end)>& visit);

}  // namespace ottava::data
