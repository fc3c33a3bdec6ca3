#include "core/data/tokenizer/definition.h"

#include "core/data/tokenizer/tokenizer.h"
#include "core/error.h"
#include "tests/core/data/tokenizer/small_tokenizer.h"
#include "tests/support/catch.h"

using namespace ottava;
using ottava::test::SmallTokenizer;

namespace {

std::string error_of(const SmallTokenizer& small, const std::string& config = "") {
  try {
    Tokenizer::parse(small.json(), config, "t.json");
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

void check_error(const SmallTokenizer& small, const std::string& expected, const std::string& config = "") {
  std::string got = error_of(small, config);
  INFO("got: " << got << "\nexpected: " << expected);
  CHECK(got.find(expected) != std::string::npos);
  CHECK(got.starts_with("["));
}

SmallTokenizer with(std::string SmallTokenizer::*member, const std::string& value) {
  SmallTokenizer small;
  small.*member = value;
  return small;
}

}  // namespace

TEST_CASE("the small tokenizer is read as it says") {
  auto d = tokenizer::read_definition(
      {SmallTokenizer{}.json(),
       R"({"bos_token":"<s>","eos_token":{"content":"</s>"},"pad_token":"none","add_eos_token":true})"},
      "t.json");
  CHECK(d.tokens.size() == 262);
  CHECK(d.tokens[32] == " ");
  CHECK(d.tokens[259] == "hello");
  CHECK(d.tokens[260] == "<s>");
  CHECK(d.reachable[259]);
  CHECK_FALSE(d.reachable[260]);
  REQUIRE(d.merges.size() == 4);
  CHECK(d.merges[2].left == 256);
  CHECK(d.merges[2].right == 257);
  CHECK(d.merges[2].result == 258);
  CHECK(d.bos_id == 260);
  CHECK(d.eos_id == 261);
  CHECK(d.pad_id == -1);
  CHECK_FALSE(d.adds_bos);
  CHECK_FALSE(d.adds_eos);
  CHECK(d.added[0].special);
  CHECK_FALSE(d.added[0].normalized);
}

TEST_CASE("merges may be pairs, strings, or strings after a version line") {
  auto pairs = with(&SmallTokenizer::merges, R"([["h","e"],["l","l"],["he","ll"],["hell","o"]])");
  auto version = with(&SmallTokenizer::merges, R"(["#version: 0.2","h e","l l","he ll","hell o"])");
  auto print = [](const SmallTokenizer& s) {
    return Tokenizer::parse(s.json(), "", "t.json")->fingerprint();
  };
  CHECK(print(pairs) == print({}));
  CHECK(print(version) == print({}));
  CHECK(print(with(&SmallTokenizer::merges, R"(["h e","l l","he ll"])")) != print({}));
  CHECK(print(with(&SmallTokenizer::model_extra, R"(,"ignore_merges":true)")) != print({}));
  // GPT-2's own file has no type, and empty strings where others have null.
  auto old = with(&SmallTokenizer::model_extra,
                  R"(,"unk_token":"","continuing_subword_prefix":"","end_of_word_suffix":"")");
  old.model_type = "";
  CHECK(print(old) == print({}));
}

TEST_CASE("BOS and EOS come from the template where the config does not name them") {
  SmallTokenizer small;
  small.post_processor =
      R"({"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing",
    "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
    "special_tokens":{"<s>":{"id":"<s>","ids":[260],"tokens":["<s>"]}}}]})";
  auto t = Tokenizer::parse(small.json(), "", "t.json");
  CHECK(t->bos_id() == 260);
  CHECK(t->adds_bos());
  CHECK_FALSE(t->eos_id());
  CHECK_FALSE(t->adds_eos());
  // AutoTokenizer of transformers 5.24 adds BOS to the first and not to the second, of any class.
  CHECK(Tokenizer::parse(small.json(), R"({"add_bos_token":false})", "t.json")->adds_bos());
  CHECK_FALSE(Tokenizer::parse(SmallTokenizer{}.json(),
                               R"({"bos_token":"<s>","add_bos_token":true,"add_eos_token":true})", "t.json")
                  ->adds_bos());
  check_error(small, "the post-processor adds '<s>', but bos_token is '</s>'", R"({"bos_token":"</s>"})");
}

TEST_CASE("tokens with a name are special, and one without an id is refused by its name") {
  SmallTokenizer small;
  small.added = "[]";
  small.more += R"(,"<s>":260,"</s>":261,"<pad>":262,"<a>":263,"<b>":264,"<image>":265)";
  const auto read = [&](const std::string& config, const std::string& map = "") {
    return tokenizer::read_definition({small.json(), config, map}, "t.json");
  };
  const auto d = read(R"({"bos_token":"<s>","eos_token":{"content":"</s>","rstrip":true},"unk_token":"",
      "pad_token":"<pad>","cls_token":null,"additional_special_tokens":["<a>",{"content":"<b>"}],
      "extra_special_tokens":{"image_token":"<image>"}})");
  REQUIRE(d.added.size() == 6);
  for (int32_t i = 0; i < 6; ++i) {
    CHECK(d.added[i].id == 260 + i);
    CHECK(d.added[i].special);
    CHECK_FALSE(d.added[i].normalized);
    CHECK(d.added[i].rstrip == (i == 1));
  }
  CHECK(d.bos_id == 260);
  CHECK(d.eos_id == 261);
  CHECK(d.pad_id == 262);
  const auto t = Tokenizer::parse(small.json(), R"({"bos_token":"<s>"})", "t.json");
  CHECK(t->encode("<s>hello</s>").size() == 6);
  CHECK(t->encode("<s>hello</s>")[0] == 260);
  CHECK(t->decode(t->encode("<s>hello"), {.special_tokens = DecodeOptions::SpecialTokens::drop}) == "hello");

  // Lists of transformers 4 make an ordinary added token special, those of 5 do not.
  SmallTokenizer ordinary;
  ordinary.added = R"([{"id":260,"content":"<s>","special":false}])";
  for (const auto& [list, is_special] :
       {std::pair{"additional_special_tokens", true}, std::pair{"extra_special_tokens", false}}) {
    const std::string config = fmt::format(R"({{"{}":["<s>"]}})", list);
    CHECK(tokenizer::read_definition({ordinary.json(), config, ""}, "t.json").added.at(0).special ==
          is_special);
    CHECK(read(config).added.at(0).special);  // of the vocabulary alone
  }

  // Of the older file, what the newer one does not say.
  const std::string map = R"({"bos_token":{"content":"<s>"},"eos_token":"</s>"})";
  CHECK(read("", map).bos_id == 260);
  CHECK(read(R"({"bos_token":"<s>"})", map).eos_id == 261);
  CHECK(read(R"({"bos_token":"<s>","added_tokens_decoder":{}})", map).eos_id == -1);
  CHECK_THROWS_WITH(read(R"({"bos_token":"<a>"})", map),
                    "[t.json] bos_token is '<a>' in tokenizer_config.json, but '<s>' in "
                    "special_tokens_map.json: remove the wrong one");
  CHECK_THROWS_WITH(read("", "[]"), "[t.json] special_tokens_map.json: expected a JSON object, got an array");
  CHECK_THROWS_WITH(read("", R"({"mask_token":"<m>"})"),
                    "[t.json] special_tokens_map.json: mask_token is '<m>', which is not in the vocabulary: "
                    "give it an id in added_tokens of tokenizer.json, or remove the name");
  check_error({}, "tokenizer_config.json: unk_token is '<u>', which is not in the vocabulary",
              R"({"unk_token":"<u>"})");
  check_error({}, "tokenizer_config.json: additional_special_tokens is '<a>', which is not in",
              R"({"additional_special_tokens":["<s>","<a>"]})");
  check_error({}, "tokenizer_config.json: image_token is '<i>', which is not in the vocabulary",
              R"({"extra_special_tokens":{"image_token":"<i>"}})");
  check_error({}, "tokenizer_config.json: extra_special_tokens must be an array, got \"<i>\"",
              R"({"extra_special_tokens":"<i>"})");
}

TEST_CASE("the ids that a template adds are those of the vocabulary") {
  const auto of = [](const std::string& token, const std::string& special_tokens) {
    return with(&SmallTokenizer::post_processor,
                R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":")" + token +
                    R"("}},{"Sequence":{"id":"A"}}],"special_tokens":)" + special_tokens + "}");
  };
  CHECK(error_of(of("<s>", R"({"<s>":{"id":"<s>","ids":[260],"tokens":["<s>"]}})")) == "");
  check_error(of("<s>", R"({"<s>":{"id":"<s>","ids":[261],"tokens":["<s>"]}})"),
              "the template adds id 261 for '<s>', but the vocabulary gives it 260: correct the template");
  check_error(of("<s>", R"({"<s>":{"id":"<s>","ids":[260,261],"tokens":["<s>","</s>"]}})"),
              "the template adds 2 ids for '<s>'; expected 1");
  check_error(of("<s>", R"({"<s>":{"id":"<s>","ids":["x"]}})"),
              "token '<s>' has id \"x\"; expected an integer");
  for (const char* none : {"{}", "null", R"({"<s>":{"ids":1}})"})
    check_error(of("<s>", none), "the template adds '<s>', but its special_tokens have no ids for it");
  check_error(of("<t>", R"({"<t>":{"id":"<t>","ids":[5],"tokens":["<t>"]}})"),
              "a special token of the template is '<t>', which is not in the vocabulary");
}

TEST_CASE(
    "a token of both files has the flags that tokenizer_config.json gives it, and is special if any says "
    "so") {
  SmallTokenizer small;
  small.added = R"([{"id":260,"content":"<s>","special":true,"normalized":false,"lstrip":true},)"
                R"({"id":261,"content":"</s>","special":false,"normalized":true}])";
  const auto read = [&](const std::string& config) {
    return tokenizer::read_definition({small.json(), config}, "t.json").added;
  };
  const std::string decoder =
      R"({"added_tokens_decoder":{"260":{"content":"<s>","special":false,)"
      R"("normalized":true,"single_word":true},"261":{"content":"</s>","rstrip":true}}})";
  for (const auto& added : {read(decoder), read(R"({"eos_token":"</s>"})"), read("")}) {
    REQUIRE(added.size() == 2);
    CHECK(added[0].special);
  }
  const auto both = read(decoder), named = read(R"({"eos_token":{"content":"</s>","rstrip":true}})");
  CHECK_FALSE(both[0].lstrip);
  CHECK(both[0].single_word);
  CHECK(both[0].normalized);
  CHECK(both[1].rstrip);
  CHECK_FALSE(both[1].special);
  CHECK(named[1].special);
  CHECK_FALSE(named[1].rstrip);
  CHECK(named[1].normalized);

  // Who reads tokenizer.json alone reads the same.
  const auto whole = Tokenizer::parse(small.json(), decoder, "t.json");
  const auto alone = Tokenizer::parse(whole->edited_json(small.json(), false), "", "alone");
  for (const char* text : {"a <s>", "x<s>y", "<s>", "</s> b", "</s>"})
    CHECK(alone->encode(text) == whole->encode(text));
  CHECK(whole->encode("</s> b") == std::vector<int32_t>{261, 'b'});
}

TEST_CASE("a file is edited so that by itself it says what all files say") {
  const std::string config = R"({"bos_token":"<s>","eos_token":"</s>"})";
  const auto edited = [&](const SmallTokenizer& small, bool has_bos) {
    return Tokenizer::parse(small.json(), config, "t.json")->edited_json(small.json(), has_bos);
  };
  const auto alone = [](const std::string& json) { return tokenizer::read_definition({json, ""}, "t.json"); };
  const std::string bytes = R"({"type":"ByteLevel","trim_offsets":false})";
  const auto of_template = [](const std::string& single, const std::string& specials) {
    return R"({"type":"TemplateProcessing","single":[)" + single + R"(],"special_tokens":{)" + specials +
           "}}";
  };
  const std::string bos = R"({"SpecialToken":{"id":"<s>"}})", eos = R"({"SpecialToken":{"id":"</s>"}})",
                    text = R"({"Sequence":{"id":"A"}})", bos_ids = R"("<s>":{"ids":[260]})",
                    eos_ids = R"("</s>":{"ids":[261]})";
  for (const std::string& section :
       {std::string("null"), bytes, of_template(bos + "," + text, bos_ids),
        of_template(text + "," + eos, eos_ids),
        R"({"type":"Sequence","processors":[)" + bytes + "," +
            of_template(bos + "," + text + "," + eos, bos_ids + "," + eos_ids) + "]}"}) {
    INFO(section);
    SmallTokenizer small;
    small.post_processor = section;
    const auto before = alone(small.json());
    for (bool has_bos : {false, true}) {
      const std::string json = edited(small, has_bos);
      CHECK((json == small.json()) == (has_bos == before.adds_bos));
      const auto after = alone(json);
      CHECK(after.adds_bos == has_bos);
      CHECK(after.adds_eos == before.adds_eos);
      CHECK(after.bos_id == (has_bos ? 260 : -1));
      CHECK((json.find(R"("trim_offsets":false)") != std::string::npos) ==
            (section.find("trim_offsets") != std::string::npos));
    }
  }

  SmallTokenizer unlisted;
  unlisted.added = R"([{"id":261,"content":"</s>","special":true}])";
  unlisted.more += R"(,"<s>":260)";
  CHECK(alone(unlisted.json()).added.size() == 1);
  const auto listed = alone(edited(unlisted, false));
  REQUIRE(listed.added.size() == 2);
  CHECK(listed.added[0].content == "<s>");
  CHECK(listed.added[0].special);
  CHECK(edited(unlisted, true)
            .find("\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[260],\"tokens\":[\"<s>\"]}}") !=
        std::string::npos);
  std::string bare = unlisted.json();
  for (const std::string& section :
       {R"("added_tokens":)" + unlisted.added + ",", std::string(R"("post_processor":null,)")})
    bare.erase(bare.find(section), section.size());
  bare.insert(bare.find(R"("<s>":260)"), R"("</s>":261,)");
  const auto whole = alone(Tokenizer::parse(bare, config, "t.json")->edited_json(bare, true));
  CHECK(whole.added.size() == 2);
  CHECK(whole.adds_bos);
}

TEST_CASE("keys that are the text itself are told from byte-level keys") {
  std::string vocab;
  for (int b = 0; b < 256; ++b) {
    vocab += b < 128 ? fmt::format(",\"\\u{:04x}\":{}", b, b) : fmt::format(",\"\\\\x{:02x}\":{}", b, b);
  }
  auto json = fmt::format(R"({{"pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false}},
    "model":{{"type":"BPE","vocab":{{{}," the":256,"<|end|>":257}},"merges":[]}}}})",
                          vocab.substr(1));
  auto t =
      Tokenizer::parse(json, R"({"eos_token":"<|end|>","added_tokens_decoder":{"257":{"content":"<|end|>",
    "special":true}}})",
                       "t.json");
  CHECK(t->vocab_size() == 258);
  CHECK(t->eos_id() == 257);
  CHECK(t->is_special(257));
  CHECK(t->encode("a the\xc3\xa9\x80<|end|>") ==
        std::vector<int32_t>{'a', ' ', 't', 'h', 'e', 0xc3, 0xa9, 0x80, 257});
  CHECK(t->decode(t->encode("a the\xc3\xa9\x80\n")) == "a the\xc3\xa9\x80\n");
  CHECK(t->token_bytes(256) == " the");
  CHECK(t->describe().find("no merge leads to 1 token, so text never produces it") != std::string::npos);
}

TEST_CASE("an added token among those of the model is none that no merge leads to") {
  SmallTokenizer small;
  small.more = R"(,"he":256,"ll":258,"hell":259,"hello":260)";
  small.added = R"([{"id":257,"content":"<s>","special":true}])";
  CHECK(Tokenizer::parse(small.json(), "", "t.json")->describe().find("no merge leads") == std::string::npos);
}

TEST_CASE("malformed and unsupported files are refused with the reason") {
  using S = SmallTokenizer;
  std::string whole = S{}.json();
  for (size_t length : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
    CHECK_THROWS_AS(Tokenizer::parse(whole.substr(0, length), "", "t.json"), FileError);
  }
  CHECK_THROWS_WITH(Tokenizer::parse("[1]", "", "t.json"), "[t.json] expected a JSON object, got an array");
  CHECK_THROWS_WITH(Tokenizer::parse("{}", "", "t.json"), "[t.json] \"model\" is missing");
  CHECK_THROWS_WITH(Tokenizer::parse(R"({"model":{"type":"Unigram"}})", "", "t.json"),
                    "[t.json] model type 'Unigram' is not supported; expected BPE");
  CHECK_THROWS_WITH(Tokenizer::parse(std::string(100000, '['), "", "t.json"),
                    "[t.json] malformed JSON: nested more than 64 levels");
  CHECK_THROWS_WITH(Tokenizer::parse(R"({"model":{"vocab":{"a":0},"merges":[]}})", "", "t.json"),
                    "[t.json] the vocabulary has no token for byte 0x00 (key U+0100), so some text could not "
                    "be encoded; expected a byte-level vocabulary with all 256");
  check_error({}, "[tokenizer_config.json beside t.json] malformed JSON", "{");
  check_error(with(&S::model_extra, R"(,"byte_fallback":true)"), "byte_fallback belongs to SentencePiece");
  check_error(with(&S::model_extra, R"(,"ignore_merges":1)"),
              "\"ignore_merges\" must be true or false, got 1");
  check_error(with(&S::model_extra, R"(,"end_of_word_suffix":"</w>")"),
              "end_of_word_suffix \"</w>\" is not supported");
  auto dropout = S{}.json();
  dropout.replace(dropout.find("\"dropout\":null"), 14, "\"dropout\":0.1");
  CHECK_THROWS_WITH(Tokenizer::parse(dropout, "", "t.json"),
                    "[t.json] dropout 0.1 would make ids random; expected null");
}

TEST_CASE("ids must be 0 to n - 1, each once") {
  using S = SmallTokenizer;
  check_error(with(&S::more, R"(,"he":256,"ll":257,"hell":258,"hello":258)"),
              "id 258 is given twice: to 'hell");
  check_error(with(&S::more, R"(,"he":256,"ll":257,"hell":258,"hello":270)"),
              "ids are not contiguous: there are 262 tokens, but none has id 259; expected 0 to 261");
  check_error(with(&S::more, R"(,"he":-1)"),
              "token 'he' has id -1; expected an integer from 0 to 2147483647");
  check_error(with(&S::more, R"(,"he":18446744073709551615)"),
              "token 'he' has id 1.8446744073709552e+19; expected an integer");
  check_error(with(&S::more, R"(,"he":256,"he":257)"), "'he' appears twice in one object");
  check_error(with(&S::more, R"(,"he":25.5)"), "token 'he' has id 25.5; expected");
  check_error(with(&S::added, R"([{"id":300,"content":"<s>"}])"), "none has id 260; expected 0 to 260");
  check_error(with(&S::added, R"([{"id":260,"content":"<s>"},{"id":260,"content":"<t>"}])"),
              "id 260 is given twice");
  check_error(with(&S::added, R"([{"id":260,"content":"he"}])"),
              "added token 'he' has id 260, but the vocabulary gives it 256");
  check_error(with(&S::added, R"([{"id":260,"content":""}])"), "an added token has no content");
  check_error(with(&S::added, R"([{"id":260}])"), "the content of an added token must be a string, got null");
  check_error(with(&S::added, R"({})"), "\"added_tokens\" must be an array, got an object");
}

TEST_CASE("merges name tokens that exist") {
  using S = SmallTokenizer;
  check_error(with(&S::merges, R"(["h e","h x"])"),
              "merge 1 ('h' + 'x') needs token 'hx', which the vocabulary does not have");
  check_error(with(&S::merges, R"(["hq e"])"), "merge 0 ('hq' + 'e') needs token 'hq'");
  check_error(with(&S::merges, R"(["he"])"),
              "merge 0 is \"he\"; expected two tokens and one space between them");
  check_error(with(&S::merges, R"(["h e l"])"), "merge 0 is \"h e l\"; expected two tokens");
  check_error(with(&S::merges, R"([["h","e","l"]])"),
              "merge 0 is an array; expected \"a b\" or [\"a\", \"b\"]");
  check_error(with(&S::merges, R"({})"), "\"merges\" must be an array, got an object");
}

TEST_CASE("normalizers, pre-tokenizers, decoders and post-processors that are not built are named") {
  using S = SmallTokenizer;
  check_error(with(&S::normalizer, R"({"type":"Lowercase"})"),
              "normalizer 'Lowercase' is not supported; expected none or NFC");
  check_error(with(&S::pre_tokenizer, R"({"type":"Metaspace"})"),
              "pre-tokenizer 'Metaspace' is not supported");
  check_error(with(&S::pre_tokenizer, "null"), "there is no ByteLevel pre-tokenizer");
  check_error(with(&S::pre_tokenizer,
                   R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})"),
              "pre-tokenizer 'Digits' after ByteLevel is not supported");
  check_error(with(&S::pre_tokenizer, R"({"type":"Sequence","pretokenizers":3})"),
              "\"pretokenizers\" of a Sequence must be an array");
  auto split = [](const std::string& inside) {
    return with(&S::pre_tokenizer, R"({"type":"Sequence","pretokenizers":[{"type":"Split",)" + inside +
                                       R"(},{"type":"ByteLevel","use_regex":false}]})");
  };
  check_error(split(R"("pattern":{"Regex":"a"},"behavior":"Removed")"),
              "Split behavior 'Removed' is not supported; expected Isolated");
  check_error(split(R"("pattern":{"Regex":"a(b"},"behavior":"Isolated")"),
              "split pattern 'a(b' is not a regular expression: missing closing parenthesis");
  check_error(split(R"("pattern":{"Regex":"\\C"},"behavior":"Isolated")"), "is not a regular expression");
  check_error(split(R"("pattern":{},"behavior":"Isolated")"),
              "a Split needs a pattern with either Regex or String");
  check_error(split(R"("pattern":{"Regex":""},"behavior":"Isolated")"), "a Split has an empty pattern");
  check_error(split("\"pattern\":{\"Regex\":\"" + std::string(20000, 'a') + "\"},\"behavior\":\"Isolated\""),
              "a split pattern has 20000 bytes; at most 16384 are accepted");
  check_error(with(&S::decoder, R"({"type":"WordPiece"})"),
              "decoder 'WordPiece' is not supported; expected ByteLevel");
  check_error(with(&S::post_processor, R"({"type":"BertProcessing"})"),
              "post-processor 'BertProcessing' is not supported");
  check_error(with(&S::post_processor, R"({"type":"TemplateProcessing","single":[]})"),
              "has no place for the text");
  check_error(
      with(&S::post_processor, R"({"type":"TemplateProcessing","single":[{"Sequence":{}},{"Sequence":{}}]})"),
      "must be [BOS] text [EOS]");
  check_error({}, "bos_token is '<missing>', which is not in the vocabulary", R"({"bos_token":"<missing>"})");
  check_error({}, "tokenizer_config.json: bos_token must be a string, got 5", R"({"bos_token":5})");
  check_error({}, "added_tokens_decoder has key 'x'; expected an id",
              R"({"added_tokens_decoder":{"x":{"content":"y"}}})");
}
