#include "core/data/data_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "core/log.h"
#include "tests/core/data/compress.h"
#include "tests/core/data/fixture.h"
#include "tests/support/captured_output.h"
#include "tests/support/skip.h"

using namespace ottava;
using namespace ottava::data;
using namespace ottava::data::test;

namespace {

std::vector<std::string> names(const std::vector<std::string>& sources, const std::string& root) {
  std::vector<std::string> list;
  for (const DataFile& file : find_data_files(sources)) {
    REQUIRE(file.path.starts_with(root + "/"));
    list.push_back(file.path.substr(root.size() + 1));
  }
  return list;
}

using List = std::vector<std::string>;

/// A user whom the rights of folders bind, where that can be; of root again at the end.
struct AsNobody {
  const bool is_changed = ::geteuid() == 0 && ::seteuid(65534) == 0;
  ~AsNobody() {
    if (is_changed && ::seteuid(0) != 0) std::abort();
  }
};

/// The source that stands for those that this file names.
std::string listed_in(const std::string& path) { return fmt::format("@{}", path); }

}  // namespace

TEST_CASE("formats keep their numbers, which fingerprints in checkpoints contain") {
  int number = 0;
  for (const Format format : {Format::text, Format::json_lines, Format::ottava_shard, Format::llmc_shard,
                              Format::megatron_shard, Format::tokens_u16, Format::tokens_u32}) {
    CHECK(static_cast<int>(format) == number);
    CHECK(is_tokenized(format) == (number >= 2));
    CHECK(is_bare(format) == (number >= 5));
    ++number;
  }
  CHECK_HAS(message_of<Error>([&] { name_of(static_cast<Format>(number)); }), "[data] format 7 has no row");
}

TEST_CASE("files, folders, globs and lists, in byte order within each") {
  TemporaryFolder folder;
  for (const char* name : {"b.txt", "a/2.jsonl", "a/10.jsonl", "a/x/deep.md", "a/.hidden/no.txt", "a/.no.txt",
                           "a/model.safetensors", "a/README.md", "a/x/LICENSE.txt", "c.txt"}) {
    folder.write(name, "x");
  }
  folder.write("empty.txt", "");
  folder.write("list", "# two of them\n\n  b.txt  # this\n" + (folder / "c.txt") + "\n@more/list\n");
  folder.write("more/list", "../a/2.jsonl\r\n");
  const std::string& root = folder.path();
  CHECK(names({folder / "c.txt", folder / "b.txt"}, root) == List{"c.txt", "b.txt"});
  CHECK(names({folder / "a"}, root) == List{"a/10.jsonl", "a/2.jsonl", "a/x/deep.md"});
  CHECK(names({root}, root) == List{"a/10.jsonl", "a/2.jsonl", "a/x/deep.md", "b.txt", "c.txt"});
  CHECK(names({folder / "*.txt"}, root) == List{"b.txt", "c.txt"});
  CHECK(names({folder / "?/[12]*.jsonl"}, root) == List{"a/10.jsonl", "a/2.jsonl"});
  CHECK(names({listed_in(folder / "list")}, root) == List{"b.txt", "c.txt", "more/../a/2.jsonl"});
}

TEST_CASE("lists may begin with a byte order mark, and names hold a number sign") {
  TemporaryFolder folder;
  for (const char* name : {"a.txt", "b#2.txt", "#c.txt"}) folder.write(name, "x");
  folder.write("list",
               "\xef\xbb\xbf"
               "a.txt\t# the first\nb#2.txt #the second\n./#c.txt\n# none\n  # none\n");
  CHECK(names({listed_in(folder / "list")}, folder.path()) == List{"a.txt", "b#2.txt", "./#c.txt"});
}

TEST_CASE("what a folder names data and has none of is said") {
  TemporaryFolder folder;
  folder.write("data/a.txt", "x");
  std::filesystem::create_symlink(folder / "data/a.txt", folder / "data/b.txt");
  REQUIRE(::mkfifo((folder / "data/pipe.txt").c_str(), 0600) == 0);
  REQUIRE(::mkfifo((folder / "data/control").c_str(), 0600) == 0);
  std::filesystem::create_symlink(folder / "nowhere", folder / "data/notes.dat");
  std::filesystem::create_symlink(folder / "nowhere", folder / "data/.hidden.txt");
  const CapturedOutput log;
  ottava::log::set_level(ottava::log::Level::info);
  CHECK(names({folder / "data"}, folder.path()) == List{"data/a.txt", "data/b.txt"});
  ottava::log::set_level(ottava::log::Level::warning);
  CHECK_HAS(log.text(), "2 files taken, left out: '" + (folder / "data/pipe.txt") + "'");
  std::filesystem::create_symlink(folder / "nowhere", folder / "data/part-2.jsonl.gz");
  CHECK_HAS(message_of<FileError>([&] { find_data_files({folder / "data"}); }),
            "'" + (folder / "data/part-2.jsonl.gz") + "' is a broken link");
}

TEST_CASE("what keeps a folder from being listed is named") {
  TemporaryFolder folder;
  folder.write("itself/a.txt", "x");
  std::filesystem::create_symlink("loop.txt", folder / "itself/loop.txt");
  folder.write("above/sub/a.txt", "x");
  std::filesystem::create_symlink("..", folder / "above/sub/up");
  for (const char* at : {"itself/loop.txt", "above/sub/up/sub/up"}) {
    const std::string listed = folder / std::string(at).substr(0, std::string(at).find('/'));
    CHECK_HAS(message_of<FileError>([&] { find_data_files({listed}); }),
              "cannot list '" + listed + "', at '" + (folder / at));
  }
}

TEST_CASE("shards that are not all there are left out of a folder, and refused where they are named") {
  TemporaryFolder folder;
  folder.write("data/a.txt", "x");
  folder.write("data/books.incomplete-a/b.txt", "x");
  folder.write("data/own.incomplete-series/c.txt", "x");
  const std::string unfinished = folder / "data/shards.incomplete-Ab12Cd";
  folder.write("data/shards.incomplete-Ab12Cd/tokens-00000.bin", "x");
  folder.write("data/shards.incomplete-Ab12Cd/.nfs0001", "x");
  const CapturedOutput log;
  ottava::log::set_level(ottava::log::Level::info);
  const std::string own = "data/own.incomplete-series";
  CHECK(names({folder / "data"}, folder.path()) ==
        List{"data/a.txt", "data/books.incomplete-a/b.txt", own + "/c.txt"});
  CHECK(names({folder / own}, folder.path()) == List{own + "/c.txt"});
  ottava::log::set_level(ottava::log::Level::warning);
  CHECK_HAS(log.text(), "3 files taken, left out: '" + unfinished + "'");
  for (const std::string& source :
       {unfinished, unfinished + "/", folder / "data/shards*", unfinished + "/*.bin"}) {
    const std::string message = message_of<DataError>([&] { find_data_files({source}); });
    CHECK_HAS(message, "'" + unfinished);
    CHECK_HAS(message, "holds only some of its shards");
  }
}

TEST_CASE("tokenizers, models and runs are no data of the folder that they lie in") {
  TemporaryFolder folder;
  folder.write("a.txt", "x");
  folder.write("first_model/notes.txt", "x");
  folder.write("first_model/tokenizer/tokenizer.json", "{}");
  folder.write("first_model/tokenizer/merges.txt", "x");
  folder.write("first_model/run/.lock", "");
  std::filesystem::create_directory(folder / "first_model/run/data_index");
  folder.write("first_model/run/metrics.jsonl", "{}\n");
  folder.write("run/data_index", "x");
  folder.write("run/b.txt", "x");
  folder.write("only/tokenizer/tokenizer.json", "{}");
  folder.write("only/tokenizer/tokenizer_config.json", "{}");
  folder.write("with_tokenizer/c.txt", "x");
  folder.write("with_tokenizer/tokenizer.json", "{}");
  folder.write("tokenizer.json", "{}");
  folder.write("tokenizer_config.json", "{}");
  const CapturedOutput log;
  ottava::log::set_level(ottava::log::Level::info);
  CHECK(names({folder.path()}, folder.path()) ==
        List{"a.txt", "first_model/notes.txt", "run/b.txt", "with_tokenizer/c.txt"});
  ottava::log::set_level(ottava::log::Level::warning);
  CHECK_HAS(log.text(), "left out: '" + (folder / "first_model/run") + "', '" +
                            (folder / "first_model/tokenizer") + "', '" + (folder / "only/tokenizer") + "'");
  // A folder of data that is a run's too.
  folder.write("run/.lock", "");
  for (const char* name :
       {"decisions.json", "metrics.jsonl", "metrics.rank1.jsonl", "events.jsonl",
        "profile_traces/iteration_10/rank0_trace.json", "comm_traces/rank_0.json", "deeper/events.jsonl"})
    folder.write("run/" + std::string(name), "{}\n");
  CHECK(names({folder / "run"}, folder / "run") == List{"b.txt", "deeper/events.jsonl"});
  CHECK_HAS(message_of<DataError>([&] { find_data_files({folder / "only"}); }),
            " files; left out: '" + (folder / "only/tokenizer") + "'");
  // Where a source names it, it is data.
  CHECK(names({folder / "first_model/tokenizer/merges.txt"}, folder.path()) ==
        List{"first_model/tokenizer/merges.txt"});
}

TEST_CASE("formats are known by name, shards by their first bytes") {
  TemporaryFolder folder;
  auto format = [&](const std::string& name, const std::string& bytes) {
    DataFile file = find_data_files({folder.write(name, bytes)})[0];
    return fmt::format("{} {}", name_of(file.format), static_cast<int>(file.compression));
  };
  CHECK(format("a.txt", "x") == "text 0");
  CHECK(format("README", "x") == "text 0");
  CHECK(format("a.md.gz", gzip("x")) == "text 1");
  CHECK(format("a.json", "x") == "JSON lines 0");
  CHECK(format("shard_000", "\xef\xbb\xbf{\"text\": \"x\"}\n{\"te") == "JSON lines 0");
  CHECK(format("long", "{\"text\": \"" + std::string(5000, 'x') + "\"}\n") == "JSON lines 0");
  CHECK(format("code.c", "{ int x; }\n") == "text 0");
  CHECK(format("packed.gz", gzip("{\"text\": \"x\"}\n")) == "JSON lines 1");
  CHECK(format("a.jsonl.gz", gzip("x")) == "JSON lines 1");
  CHECK(format("a.ndjson.zst", zstd("x")) == "JSON lines 2");
  CHECK(format("renamed.txt", "OTTAVATK") == "ottava shard 0");
}

TEST_CASE("files that were exchanged are noticed by a sample of their content") {
  TemporaryFolder folder;
  std::string text(20000, 'x');
  uint64_t before = find_data_files({folder.write("a.txt", text)})[0].content;
  for (size_t at : {size_t{0}, text.size() / 2, text.size() - 1}) {
    std::string changed = text;
    changed[at] = 'y';
    CHECK(find_data_files({folder.write("a.txt", changed)})[0].content != before);
  }
  CHECK(find_data_files({folder.write("b.txt", text)})[0].content == before);
}

TEST_CASE("sources that cannot be read") {
  TemporaryFolder folder;
  auto data = [](std::vector<std::string> sources) {
    return message_of<DataError>([&] { find_data_files(sources); });
  };
  auto file = [](std::vector<std::string> sources) {
    return message_of<FileError>([&] { find_data_files(sources); });
  };
  CHECK_HAS(data({}), "the dataset is empty: 0 files in no sources");
  CHECK_HAS(data({""}), "a source is an empty string");
  const std::string empty = folder.write("empty.txt", "");
  CHECK_HAS(data({empty}), "the dataset is empty: 1 file in '" + empty + "', all of them empty");
  CHECK_HAS(data(std::vector<std::string>(5, empty)), "', '" + empty + "' and 2 more, all of them empty");
  CHECK_HAS(data({folder / "*.md"}), "no file matches");
  folder.write("only/model.safetensors", "x");
  CHECK_HAS(data({folder / "only"}), "contains no data");
  CHECK_HAS(data({listed_in(folder.write("loop", "@loop\n"))}), "nested more than 8 deep");
  CHECK_HAS(file({folder / "none.txt"}), "does not exist; expected a file, folder, glob or @FILE");
  CHECK_HAS(file({folder / std::string(300, 'x')}), "cannot access");
  CHECK_HAS(file({listed_in(folder / "none")}), "none");
  CHECK_HAS(file({listed_in(folder / "only")}), "is not a regular file");
  CHECK_HAS(file({folder.write("nul.txt", std::string("ab\0c", 4))}), "is not text: byte 2 is 0");
  CHECK_HAS(file({folder.write("windows.txt", std::string("\xff\xfeh\0i\0", 6))}),
            "it begins as UTF-16 does: convert it with iconv -f UTF-16 -t UTF-8");
  CHECK_HAS(file({folder.write("x.bin", "not tokens")}), "is no token shard: it starts with 6e 6f 74 20");
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:79\n";
  for (const char* name : {"pointer.txt", "pointer.jsonl", "pointer.jsonl.gz", "pointer.bin"})
    CHECK_HAS(file({folder.write(name, pointer)}),
              "': this is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`");
  for (const Format format : {Format::text, Format::tokens_u16})
    CHECK_HAS(message_of<FileError>([&] { find_data_files({folder.write("pointer.bin", pointer)}, format); }),
              "pointer.bin': this is a Git LFS pointer");
  const std::string tar("notes.txt\0\0\0\0", 13);
  CHECK_HAS(file({folder.write("corpus.tar.gz", gzip(tar))}), "contains no text: byte 9 of its decompressed");
  CHECK_HAS(file({folder.write("corpus.tar.zst", zstd(tar))}),
            "contains no text: byte 9 of its decompressed");
  const std::string ids = folder.write("train.bin.gz", gzip("0123"));
  CHECK_HAS(message_of<FileError>([&] { find_data_files({ids}, Format::tokens_u16); }),
            "is compressed, but u16 tokens are read directly: unpack it first");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_HAS(file({folder / "pipe"}), "is not a regular file");
}

TEST_CASE("a folder that may not be read is named, also where a glob looks into it") {
  TemporaryFolder folder;
  folder.write("open/a.txt", "x");
  const std::string closed = folder / "closed";
  std::filesystem::create_directories(closed + "/sub");
  std::filesystem::create_directories(folder / "links");
  std::filesystem::create_symlink("../closed/sub", folder / "links/closed");
  folder.write("open/in/a.txt", "x");
  std::filesystem::create_symlink("loop", folder / "open/loop");
  std::filesystem::create_symlink("nowhere", folder / "open/none");
  folder.write("disk/one/a.txt", "x");
  std::filesystem::create_directories(folder / "disk/lost+found");
  std::filesystem::permissions(folder / "disk/lost+found", std::filesystem::perms::none);
  std::filesystem::permissions(closed, std::filesystem::perms::none);
  std::filesystem::permissions(folder.path(), std::filesystem::perms{0755});
  {
    const AsNobody nobody;
    if (::geteuid() == 0) return ottava::test::skip("root may read every folder");
    const auto said = [](const std::string& source) {
      return message_of<FileError>([&] { find_data_files({source}); });
    };
    CHECK_HAS(said(closed), "cannot list '" + closed + "': Permission denied");
    for (const std::string& glob : {closed + "/*.txt", folder / "*/*.txt", folder / "clos?d/*/a.txt"})
      CHECK_HAS(said(glob), "[data] '" + glob + "': cannot list '" + closed + "': Permission denied");
    const auto cannot_look = [&](const std::string& glob, const std::string& at) {
      CHECK_HAS(said(glob), "[data] '" + glob + "': cannot look at '" + at + "': Permission denied");
    };
    cannot_look(folder / "*/a.txt", closed + "/a.txt");
    cannot_look(folder / "*/sub/*.txt", closed + "/sub");
    cannot_look(folder / "links/*/*.txt", folder / "links/closed");
    for (const char* glob : {"op*/*.txt", "op*/a.txt"})
      CHECK(names({folder / glob}, folder.path()) == List{"open/a.txt"});
    CHECK(names({folder / "op*/*/a.txt"}, folder.path()) == List{"open/in/a.txt"});
    // What only root may look into, at the top of a disk.
    for (const char* glob : {"disk/*/*.txt", "disk/*/a.txt"})
      CHECK(names({folder / glob}, folder.path()) == List{"disk/one/a.txt"});
  }
  std::filesystem::permissions(folder / "disk/lost+found", std::filesystem::perms::owner_all);
  std::filesystem::permissions(closed, std::filesystem::perms::owner_all);
}
