#include "core/io/safetensors.h"

#include <cstring>
#include <filesystem>

#include "core/io/safetensors_folder.h"
#include "core/io/tensor_rectangle.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace ottava {
namespace {

using Catch::Matchers::Contains;

void write(const std::string& path, std::string_view bytes) {
  File::create(path).write_at(bytes.data(), bytes.size(), 0);
}

std::string with_length(const std::string& json, const std::string& data) {
  uint64_t length = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json + data;
}

SafetensorsHeader two_tensors() {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  header.tensors.push_back(make_safetensors_entry("a.weight", DType::f32, {3, 5}, 0));
  header.tensors.push_back(make_safetensors_entry("b", DType::bf16, {7}, header.tensors[0].end));
  return header;
}

std::string two_tensors_file() {
  std::string bytes = make_safetensors_header(two_tensors());
  for (int i = 0; i < 15; ++i) {
    float value = static_cast<float>(i);
    bytes.append(reinterpret_cast<const char*>(&value), 4);
  }
  for (int i = 0; i < 7; ++i) {
    bf16 value(static_cast<float>(i) / 2);
    bytes.append(reinterpret_cast<const char*>(&value), 2);
  }
  return bytes;
}

TEST_CASE("safetensors: a header that was written is read back") {
  TemporaryFolder folder;
  std::string bytes = two_tensors_file();
  CHECK(make_safetensors_header(two_tensors()).size() % 64 == 0);
  write(folder / "a", bytes);
  SafetensorsFile file(folder / "a");
  CHECK(file.header().metadata == two_tensors().metadata);
  REQUIRE(file.header().tensors.size() == 2);
  const SafetensorsEntry* a = file.find("a.weight");
  REQUIRE(a != nullptr);
  CHECK(a->dtype == DType::f32);
  CHECK(a->shape == std::vector<int64_t>{3, 5});
  CHECK(a->end == 60);
  CHECK(file.find("b")->type == "BF16");
  CHECK(file.find("b")->rows() == 7);
  CHECK(file.find("b")->columns() == 1);
  CHECK(file.find("c") == nullptr);
}

TEST_CASE("safetensors: rectangles are read with conversion") {
  TemporaryFolder folder;
  write(folder / "a", two_tensors_file());
  SafetensorsFile file(folder / "a");
  std::vector<float> out(6);
  read_rectangle(file, *file.find("a.weight"), {1, 3, 1, 4}, {DType::f32, out.data()});
  CHECK(out == std::vector<float>{6, 7, 8, 11, 12, 13});
  out.resize(10);
  read_rectangle(file, *file.find("a.weight"), {1, 3, 0, 5}, {DType::f32, out.data()});
  CHECK(out == std::vector<float>{5, 6, 7, 8, 9, 10, 11, 12, 13, 14});
  out.resize(3);
  read_rectangle(file, *file.find("b"), {4, 7, 0, 1}, {DType::f32, out.data()});
  CHECK(out == std::vector<float>{2, 2.5, 3});
  std::vector<bf16> narrow(2);
  read_rectangle(file, *file.find("a.weight"), {2, 3, 3, 5}, {DType::bf16, narrow.data()});
  CHECK(static_cast<float>(narrow[1]) == 14);
  CHECK_THROWS_WITH(read_rectangle(file, *file.find("b"), {4, 8, 0, 1}, {DType::f32, out.data()}),
                    Contains("tensor 'b' is [7, 1], rows 4 to 8"));
}

TEST_CASE("spans of a rectangle cover it in order, within the limit") {
  for (int64_t limit : {1, 2, 3, 7, 100}) {
    for (TensorRectangle r :
         {TensorRectangle{1, 4, 0, 5}, TensorRectangle{0, 4, 2, 4}, TensorRectangle{2, 2, 0, 5}}) {
      std::vector<int64_t> seen;
      int64_t next = 0;
      for_each_span(5, r, limit, [&](const ElementSpan& span) {
        CHECK(span.local == next);
        CHECK((span.count > 0 && span.count <= limit));
        for (int64_t i = 0; i < span.count; ++i) seen.push_back(span.first + i);
        next += span.count;
      });
      std::vector<int64_t> expected;
      for (int64_t row = r.row_begin; row < r.row_end; ++row) {
        for (int64_t c = r.column_begin; c < r.column_end; ++c) expected.push_back(row * 5 + c);
      }
      CHECK(seen == expected);
    }
  }
}

TEST_CASE("safetensors: files that are damaged or something else are refused") {
  TemporaryFolder folder;
  auto open = [&](const std::string& bytes) {
    write(folder / "x", bytes);
    SafetensorsFile file(folder / "x");
  };
  std::string good = two_tensors_file();
  open(good);
  CHECK_THROWS_WITH(open(""), Contains("begins with 8 bytes of length, this one has 0 bytes"));
  CHECK_THROWS_WITH(open("x"), Catch::Matchers::EndsWith("this one has 1 byte"));
  CHECK_THROWS_WITH(open(good.substr(0, 100)), Contains("it is truncated"));
  CHECK_THROWS_WITH(open(good.substr(0, good.size() - 1)), Contains("the file has 73: it is truncated"));
  CHECK_THROWS_WITH(open(good + "x"), Contains("something follows the last tensor"));
  CHECK_THROWS_WITH(open(std::string(16, '\xff')), Contains("the format allows 100000000"));
  CHECK_THROWS_WITH(open("version https://git-lfs.github.com/spec/v1\n"), Contains("git lfs pull"));
  CHECK_THROWS_WITH(open(std::string("PK\3\4 and more", 13)), Contains("PyTorch"));
  CHECK_THROWS_WITH(open(with_length("[]", "")), Contains("does not begin with '{'"));
  CHECK_THROWS_WITH(open(with_length("", "")), Contains("does not begin with '{'"));
  CHECK_THROWS_WITH(open(with_length("{\"a\xff\":1}", "")), Contains("malformed JSON"));
}

TEST_CASE("safetensors: every lie of a header is named") {
  auto parse = [](const std::string& json, int64_t data = 8) {
    return parse_safetensors_header(json, data, "f");
  };
  CHECK_NOTHROW(parse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"));
  CHECK_THROWS_WITH(parse(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})"),
                    Contains("not a known type"));
  CHECK_THROWS_WITH(parse(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})"),
                    Contains("do not hold 12 bytes"));
  CHECK_THROWS_WITH(parse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})"),
                    Contains("do not hold"));
  CHECK_THROWS_WITH(parse(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})"),
                    Contains("integers >= 0"));
  CHECK_THROWS_WITH(parse(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})"),
                    Contains("integers >= 0"));
  CHECK_THROWS_WITH(parse(R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})"),
                    Contains("expected an array"));
  CHECK_THROWS_WITH(parse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})"),
                    Contains("expected [begin, end]"));
  CHECK_THROWS_WITH(parse(R"({"a":{"dtype":"F32","shape":[2]}})"), Contains("expected an object with dtype"));
  CHECK_THROWS_WITH(parse(R"({"a":7})"), Contains("is an integer, expected an object"));
  CHECK_THROWS_WITH(parse(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})"),
                    Contains("more elements than 64 bits"));
  CHECK_THROWS_WITH(parse(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":7})"),
                    Contains("appears twice"));
  CHECK_THROWS_WITH(parse(R"({"__metadata__":{"x":1}})", 0), Contains("expected a string"));
  std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  CHECK_THROWS_WITH(parse("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12),
                    Contains("tensor 'b' begins at byte 4 of the data, expected 8: it overlaps"));
  CHECK_THROWS_WITH(parse("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16),
                    Contains("there is a hole before it"));
  CHECK_NOTHROW(parse("{" + a + R"(,"e":{"dtype":"F32","shape":[0,3],"data_offsets":[8,8]}})"));
}

TEST_CASE("safetensors folders: one file, several with an index, and what can be wrong with them") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH(SafetensorsFolder(folder / "none"), Contains("is not a folder"));
  CHECK_THROWS_WITH(SafetensorsFolder(folder.path()),
                    Contains("has neither model.safetensors.index.json nor"));
  write(folder / "pytorch_model.bin", "x");
  CHECK_THROWS_WITH(SafetensorsFolder(folder.path()), Contains("PyTorch weights must be converted"));
  write(folder / "model.safetensors", two_tensors_file());
  {
    SafetensorsFolder single(folder.path());
    CHECK(single.tensors().size() == 2);
    CHECK(single.find("b").entry->rows() == 7);
    CHECK(single.find("c").entry == nullptr);
  }
  write(folder / safetensors_file_name("model", 0, 2), two_tensors_file());
  std::string index = make_safetensors_index({{"a.weight", "model-00001-of-00002.safetensors"}}, 60);
  // transformers reads the single file, whatever lies beside it.
  for (const std::string& beside : {index, make_safetensors_index({{"z", "model.safetensors"}}, 60),
                                    std::string("{\"weight_map\": "), std::string("{}"), std::string()}) {
    write(folder / "model.safetensors.index.json", beside);
    const SafetensorsFolder both(folder.path());
    CHECK(both.tensors().size() == 2);
    CHECK(both.find("a.weight").file->path() == folder / "model.safetensors");
  }
  write(folder / "model.safetensors.index.json", index);
  std::filesystem::remove(folder / "model.safetensors");
  CHECK(SafetensorsFolder(folder.path()).tensors().size() == 1);
  write(folder / "model.safetensors.index.json",
        make_safetensors_index({{"z", "model-00001-of-00002.safetensors"}}, 60));
  CHECK_THROWS_WITH(SafetensorsFolder(folder.path()), Contains("'z' should be in model-00001"));
  for (std::string bad : {"../x", "/etc/passwd", "", ".."}) {
    CHECK_THROWS_WITH(parse_safetensors_index(make_safetensors_index({{"z", bad}}, 0), "i"),
                      Contains("expected a file in the same folder"));
  }
  CHECK_THROWS_WITH(parse_safetensors_index("{}", "i"), Contains("has no 'weight_map'"));
}

}  // namespace
}  // namespace ottava
