#include "core/data/loader.h"
#include "tests/core/data/compress.h"
#include "tests/core/data/fixture.h"

using namespace ottava;
using namespace ottava::data;
using namespace ottava::data::test;

TEST_CASE("errors of the loader") {
  TemporaryFolder folder;
  std::string text = folder.write("a.txt", "short");
  LoaderOptions o = options_for(text, 100);
  SECTION("too little text says how much was there") {
    TokenLoader loader(o);
    std::string what = message_of<DataError>([&] { windows(loader, 100, 0, 1); });
    CHECK_HAS(what, "1 file of 5 bytes, which make 1 document and 7 tokens in 1 block");
    CHECK_HAS(what, "seq_len + 1 = 101");
    CHECK_HAS(message_of<DataError>([&] { windows(loader, 100, 0, 1); }), "too small");
  }
  SECTION("a bad line ends the run where it is reached, with file, line and column") {
    std::string lines = numbered_lines(0, 40) + "{\"text\": \"broken\n" + numbered_lines(40, 40);
    LoaderOptions bad = options_for(folder.write("bad.jsonl", lines), 1);
    for (int threads : {1, 3}) {
      bad.threads = threads;
      TokenLoader loader(bad);
      std::string what = message_of<DataError>([&] { windows(loader, 1, 0, 100000); });
      CHECK_HAS(what, "bad.jsonl' line 41, column 17: syntax error while parsing value - invalid string");
      CHECK_HAS(message_of<DataError>([&] { windows(loader, 1, 0, 100000); }), "line 41");
    }
  }
  SECTION("a key that is not there") {
    LoaderOptions other = options_for(folder.write("k.jsonl", "{\"content\": \"x\"}\n"), 1);
    TokenLoader loader(other);
    CHECK_HAS(message_of<DataError>([&] { windows(loader, 1, 0, 1); }),
              "line 1, column 17: the object has no key \"text\"");
    other.text_key = "content";
    TokenLoader good(other);
    CHECK(windows(good, 1, 0, 1)[1] == 'x');
  }
  SECTION("nothing but bad records that are to be skipped") {
    LoaderOptions bad = options_for(folder.write("m.jsonl", "{\"messages\": []}\n{\n[]\n"), 1);
    bad.bad_records = BadRecords::skip;
    bad.index_folder = folder / "index";
    // The second time an index says that there is nothing.
    for (int run = 0; run < 2; ++run) {
      TokenLoader loader(bad);
      const std::string what = message_of<DataError>([&] { windows(loader, 1, 0, 1); });
      CHECK_HAS(what,
                "m.jsonl' has only bad records: 3 records are skipped (training.bad_records: skip), "
                "the first: ");
      CHECK_HAS(what, "m.jsonl' line 1, column 17: the object has no key \"text\", only \"messages\"");
    }
  }
  SECTION("what the tokenizer refuses names the file") {
    o.encoder.encode = [](std::string_view, std::vector<int32_t>&) {
      fail<DataError>("tokenizer", "no such text");
    };
    TokenLoader loader(o);
    CHECK_HAS(message_of<DataError>([&] { windows(loader, 100, 0, 1); }),
              "a.txt', document at byte 0: [tokenizer] no such text");
  }
  SECTION("a file that changes under the run") {
    TokenLoader loader(o);
    folder.write("a.txt", "longer than it was");
    CHECK_HAS(
        message_of<FileError>([&] { windows(loader, 100, 0, 1); }),
        "changed while it was being read: 18 bytes, 5 when the run started; restore it, or start a new run");
  }
  SECTION("so do tokens and compressed files") {
    LoaderOptions ids = options_for(folder.write("ids.bin", std::string(400, '\1')), 1);
    ids.format = Format::tokens_u16;
    TokenLoader tokens(ids);
    folder.write("ids.bin", std::string(200, '\1'));
    CHECK_HAS(message_of<FileError>([&] { windows(tokens, 1, 0, 1); }),
              "changed while it was being read: 200 bytes");
    const std::string packed = gzip(numbered_lines(0, 20));
    TokenLoader texts(options_for(folder.write("a.jsonl.gz", packed), 1));
    folder.write("a.jsonl.gz", gzip(numbered_lines(0, 40)));
    CHECK_HAS(message_of<FileError>([&] { windows(texts, 1, 0, 1); }),
              fmt::format("{} when the run started", packed.size()));
  }
  SECTION("impossible options") {
    LoaderOptions bad = o;
    bad.sources.clear();
    CHECK_HAS(message_of<ConfigError>([&] { TokenLoader{bad}; }), "no sources");
    bad = o, bad.seq_len = 0;
    CHECK_HAS(message_of<ConfigError>([&] { TokenLoader{bad}; }), "seq_len is 0");
    bad = o, bad.threads = 0;
    CHECK_HAS(message_of<ConfigError>([&] { TokenLoader{bad}; }), "threads is 0");
    bad = o, bad.block_bytes = 0;
    CHECK_HAS(message_of<ConfigError>([&] { TokenLoader{bad}; }), "block_bytes");
    bad = o, bad.encoder.encode = nullptr;
    CHECK_HAS(message_of<ConfigError>([&] { TokenLoader{bad}; }), "no tokenizer");
    TokenLoader loader(o);
    CHECK_HAS(message_of<DataError>([&] { loader.read(-1, 1, {}); }), "samples -1");
  }
  SECTION("an index folder that cannot be") {
    o.index_folder = text + "/index";
    CHECK_HAS(message_of<FileError>([&] { TokenLoader{o}; }), "cannot write into the folder");
  }
}
