#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "core/contains.h"
#include "core/error.h"

namespace ottava {

/// A file that the system could not reach, which says nothing of the file: a network file system may be away
/// for a moment.
struct IoError : FileError {
  using FileError::FileError;
};

/// What a person can set right while the program goes on.
struct Mendable : FileError {
  using FileError::FileError;
};

/// A disk, or what a user may take of it, is full: someone may make room.
struct FullDisk : Mendable {
  using Mendable::Mendable;
};

/// What this process may not do with a file, which says nothing of what that holds: someone may permit it.
struct NoAccess : Mendable {
  using Mendable::Mendable;
};

/// A file or folder that is not there: the folder that it was in may have been moved or deleted, and someone
/// may put it back.
struct Missing : Mendable {
  using Mendable::Mendable;
};

/// Whether an error number says that a device, a server or the system itself failed, or was disturbed.
inline bool is_of_system(int code) {
  constexpr int kOfSystem[] = {EIO,          ESTALE,       ETIMEDOUT,   ESHUTDOWN, ENOTCONN,
                               ECONNABORTED, ECONNREFUSED, ECONNRESET,  EHOSTDOWN, ENETDOWN,
                               ENOLINK,      EHOSTUNREACH, ENETUNREACH, EREMOTEIO, EPROTO,
                               ECOMM,        ENFILE,       EMFILE,      ENOMEM,    EINTR};
  return contains(kOfSystem, code);
}

/// Whether an error number says that there is no room.
inline bool is_of_full_disk(int code) { return code == ENOSPC || code == EDQUOT; }

/// Whether an error number says that this process has no right: by permissions, by a key or ticket that has
/// expired, or because the file system is read-only.
inline bool is_of_access(int code) {
  constexpr int kOfAccess[] = {EACCES, EPERM, EROFS, ENOKEY, EKEYEXPIRED, EKEYREVOKED, EKEYREJECTED};
  return contains(kOfAccess, code);
}

/// Whether an error number says that a file, or a folder on the way to it, is not there.
inline bool is_of_missing(int code) { return code == ENOENT || code == ENOTDIR; }

/// Why a system call failed, and for a limit of this process how to have more.
inline std::string system_reason(int code) {
  return std::string(std::strerror(code)) + (code == EMFILE ? ": raise ulimit -n" : "");
}

/// Throws the error of a system call, `[where] what: reason`: an IoError if it is_of_system(), a FullDisk if
/// there is no room, a NoAccess if it is_of_access(), a Missing if it is_of_missing(), else a FileError.
[[noreturn]] inline void fail_for_system(int code, std::string_view where, const std::string& what) {
  if (is_of_system(code)) fail<IoError>(where, "{}: {}", what, system_reason(code));
  if (is_of_full_disk(code)) fail<FullDisk>(where, "{}: {}", what, std::strerror(code));
  if (is_of_access(code)) fail<NoAccess>(where, "{}: {}", what, std::strerror(code));
  if (is_of_missing(code)) fail<Missing>(where, "{}: {}", what, std::strerror(code));
  fail<FileError>(where, "{}: {}", what, std::strerror(code));
}

}  // namespace ottava
