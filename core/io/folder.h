#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ottava {

/// Whether there is something at `path`, behind links. Throws FileError if the system cannot tell, as a file
/// server that does not answer.
bool is_there(const std::string& path);
/// Whether there is a folder at `path`, behind links. Throws FileError as is_there() does.
bool is_folder(const std::string& path);
/// Whether something has this name, be it a link whose target is gone. Throws FileError as is_there() does.
bool is_taken(const std::string& path);
/// `path`, or if that is taken, the first of `path`-2, `path`-3, ... that is not.
std::string unused_name(const std::string& path);
/// The names in a folder, in order. Throws FileError, of a system that fails an IoError (system_failure.h).
std::vector<std::string> names_in(const std::string& folder);
/// The paths that a glob names, in no order. Folders that are not there have none. Throws FileError, in the
/// name of `where`, for one that cannot be listed or searched, since it may have some, unless it is a disk's
/// lost+found, and of a system that fails, also midway, an IoError.
std::vector<std::string> paths_matching(std::string_view where, const std::string& glob);

/// Makes the folder, and those above it, if they do not exist, and flushes every folder in which one was
/// made, so that a loss of power does not take them with what lies in them. Returns why they cannot be made,
/// which names a link on the way that leads nowhere, or an empty text. Throws FileError if a folder cannot be
/// flushed, and where it is the system that fails an IoError.
std::string make_folders(const std::string& folder);
/// The same; also returns why nothing can be written into the folder.
std::string make_writable_folder(const std::string& folder);
/// Why nothing could be written into the folder or, where it does not exist, why it could not be made, or an
/// empty text. Makes nothing. Throws as make_writable_folder() does.
std::string why_not_writable(const std::string& folder);
/// make_folders() that throws FileError, in the name of `where`: of a system that fails an IoError, of a link
/// that leads nowhere a Missing.
void require_folder(std::string_view where, const std::string& folder);

/// Flushes the entries of a folder (what was created, renamed or removed in it).
void sync_folder(const std::string& folder);

}  // namespace ottava
