#include "core/io/folder.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "core/error.h"
#include "core/text/error_text.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace ottava {
namespace {

TEST_CASE("what is at a path is told from what has its name, and from what the system cannot tell") {
  TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  std::filesystem::create_symlink("loop", folder / "loop");
  CHECK((is_there(folder / "file") && is_taken(folder / "file")));
  CHECK((!is_there(folder / "dangling") && is_taken(folder / "dangling")));
  CHECK((!is_there(folder / "none") && !is_taken(folder / "none")));
  CHECK((is_folder(folder.path()) && !is_folder(folder / "file") && !is_folder(folder / "none")));
  CHECK((!is_there(folder / "file/x") && !is_taken(folder / "file/x")));
  const std::string inside = folder / "loop/x";
  const auto message = "[file] cannot look at " + inside + ": Too many levels of symbolic links";
  CHECK_THROWS_WITH(is_there(inside), message);
  CHECK_THROWS_WITH(is_taken(inside), message);
  CHECK(unused_name(folder / "dangling") == folder / "dangling-2");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"dangling", "file", "loop"});
  CHECK_THROWS_WITH(names_in(folder / "none"),
                    "[file] cannot list " + folder / "none" + ": No such file or directory");
}

TEST_CASE("a folder that cannot be made because of a link says which") {
  TemporaryFolder folder;
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  std::filesystem::create_symlink("loop", folder / "loop");
  const std::string dangling =
      folder / "dangling" + " is a link to nowhere, which cannot be followed: No such file or directory";
  const std::string loop =
      folder / "loop" + " is a link to loop, which cannot be followed: Too many levels of symbolic links";
  for (const char* below : {"", "/a/b"}) {
    CHECK(make_folders(folder / "dangling" + below) == dangling);
    CHECK(make_writable_folder(folder / "loop" + below) == loop);
  }
  CHECK_THROWS_WITH(require_folder("here", folder / "loop/a"),
                    "[here] cannot create the folder " + folder / "loop/a" + ": " + loop);
  std::ofstream(folder / "file") << "x";
  CHECK(make_folders(folder / "file/a") == "Not a directory");
  std::filesystem::create_symlink("file", folder / "to_file");
  CHECK(make_folders(folder / "to_file/a") == "Not a directory");
  CHECK(make_folders(folder / "new/a").empty());
  CHECK(is_there(folder / "new/a"));
}

TEST_CASE("the standard library's errors about files are told as our own are") {
  TemporaryFolder folder;
  std::string text;
  try {
    static_cast<void>(std::filesystem::file_size(folder / "none"));
  } catch (const std::exception& error) {
    text = error_text(error);
  }
  CHECK(text == "[file] cannot use " + folder / "none" + ": No such file or directory");
  const std::filesystem::filesystem_error of_no_path("directory iterator cannot advance",
                                                     {EIO, std::generic_category()});
  CHECK(error_text(of_no_path) == "[file] the system failed: Input/output error");
  CHECK(error_text(FileError("x", "y")) == "[x] y");
  CHECK(error_text(std::runtime_error("z")) == "z");
}

}  // namespace
}  // namespace ottava
