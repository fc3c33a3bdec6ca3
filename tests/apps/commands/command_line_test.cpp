#include <filesystem>

#include "core/device.h"
#include "core/io/file.h"
#include "tests/apps/commands/workplace.h"
#include "tests/support/skip.h"

// What a command line may say, and what is said of one that may not stand.

using namespace ottava;
using namespace ottava::test;

TEST_CASE("a command line that is no command is refused with what may stand there") {
  Workplace here;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "ottava: [command line] ottava needs a subcommand: init, train, plan, bench"},
      {"trian tiny.yaml", "ottava has no subcommand 'trian': expected init, train, plan, bench"},
      {"trian tiny.yaml", "did you mean train?"},
      {"-n 2 train tiny.yaml", "ottava needs a subcommand before -n: init, train, plan, bench"},
      {"data --seq_len 8 inspect a.txt", "data needs a subcommand before --seq_len: prepare or inspect"},
      {"data nothing", "ottava: [command line] data has no subcommand 'nothing': expected prepare"},
      {"launch -n 2", "a command after -- is required; see `ottava launch --help`"},
      {"launch -n 2 --grace 1e12 -- train tiny.yaml", "--grace: expected 0 to 86400, got 1e12"},
      {"launch -n 2 --only-rank 1,x -- train tiny.yaml",
       "--only-rank is '1,x', expected ranks separated by commas"},
      {"launch -n 2 -- build/ottava train tiny.yaml",
       "[launch] what stands after -- is a command of this program, and begins with 'build/ottava': leave "
       "that out"},
      {"launch -n 2 -- launch -n 2 -- train tiny.yaml",
       "[launch] what stands after -- runs on each rank, and"},
      {"launch -n 2 --nnodes 2 -- train tiny.yaml", "the address of machine 0 is unknown"},
      {"tokenizer train text.txt", "see `ottava tokenizer train --help`"},
      {"generate --checkpoint out --shout", "unknown option --shout; see `ottava generate --help`"},
      {"generate --checkpoint out --max-new-tokens=3",
       "unknown option --max-new-tokens; did you mean --max-tokens?"},
      {"eval out --task q.jsonl", "unknown option --task; did you mean --tasks?"},
      {"plan tiny.yaml --worldsize 8", "unknown option --worldsize; did you mean --world-size?"},
      {"plan '' --gpus 2", "[command line] CONFIG is empty: name a file, or leave it out; see `ottava plan"},
      {"plan tiny.yaml --gpus 0", "--gpus: expected 1 to 1048576, got 0; see `ottava plan --help`"},
      {"plan tiny.yaml --gpus", "--gpus needs a value; see `ottava plan --help`"},
      {"plan tiny.yaml --gpus 2 --json", "--json needs a value; see"},
      {"eval out --tasks", "--tasks needs a value; see"},
      {"plan tiny.yaml --top 2 --top 3", "--top is given more than once; see"},
      {"launch -n 2 --nproc-per-node 3 -- train tiny.yaml", "--nproc-per-node is given more than once"},
      {"plan tiny.yaml --steps 8", "unknown option --steps; did you mean --training.steps?"},
      {"plan tiny.yaml --vocab-size 8", "unknown option --vocab-size; did you mean --model.vocab_size?"},
      {"generate --checkpoint out --dtype float16",
       "[generate] --dtype is float16, expected bfloat16 or float32"},
      {"generate --checkpoint out --dtype half", "[generate] --dtype is half, expected bfloat16 or float32"},
      {"eval out --tasks q.jsonl --dtype e4m3", "[eval] --dtype is e4m3, expected bfloat16 or float32"}};
  for (const auto& [arguments, part] : cases) {
    const Outcome out = here.run(arguments);
    INFO(arguments << "\n" << out.output);
    CHECK(out.exit_code == 1);
    CHECK(has(out.output, part));
  }
}

TEST_CASE(
    "a number that is none, is not decimal or finite, or does not fit is refused by its option's name") {
  Workplace here;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"plan tiny.yaml --limit-gib ", "--limit-gib: expected a number, got "},
      {"generate --checkpoint out --top-p ", "--top-p: expected a number, got "},
      {"init text.txt --minutes ", "--minutes: expected 0.01 to 525600, got "},
      {"bench kernels tiny.yaml --seconds ", "--seconds: expected at least 0, got "},
      {"generate --checkpoint out --samples ", "--samples: expected at least 1, got "}};
  for (const auto& [arguments, part] : cases) {
    for (const char* number : {"nan", "inf", "-inf", "0x10", "5x", "'5 '", "1e999", "+5", "''"}) {
      const Outcome out = here.run(arguments + number);
      INFO(arguments << number << "\n" << out.output);
      CHECK(out.exit_code == 1);
      const std::string got = *number == '\'' ? number[1] == '5' ? "5 " : "nothing" : number;
      CHECK(has(out.output, "ottava: [command line] " + part + got + "; see `ottava "));
    }
  }
  for (const char* minutes : {"-5", "0", "1e30"})
    CHECK(has(here.run(std::string("init text.txt --minutes ") + minutes).output,
              "--minutes: expected 0.01 to 525600, got "));
  for (const char* samples : {"9223372036854775808", "18446744073709551616", "99999999999999999999"})
    CHECK(has(here.run(std::string("generate --checkpoint none --samples ") + samples).output,
              "--samples: expected 1 to 9223372036854775807, got "));
  for (const char* most : {"--samples 9223372036854775807", "--seed 18446744073709551615"})
    CHECK(has(here.run(std::string("generate --checkpoint none ") + most).output, "[checkpoint] none "));
  CHECK(has(here.run("generate --checkpoint none --seed 18446744073709551616").output,
            "--seed: expected 0 to 18446744073709551615, got 18446744073709551616"));
  CHECK(has(here.run("generate --checkpoint none --seed -1").output, "--seed: expected at least 0, got -1"));
}

TEST_CASE("a number with leading zeros is decimal") {
  const Workplace here;
  for (const char* arguments : {"--seed 018446744073709551615", "--samples 08", "--top-k 000"})
    CHECK(has(here.run(std::string("generate --checkpoint none ") + arguments).output, "[checkpoint] none "));
  CHECK(has(here.run("plan tiny.yaml --world-size 010").output, "Ranks: 10 ("));
  CHECK(
      has(here.run("plan tiny.yaml --world-size 00").output, "--world-size: expected 1 to 1048576, got 00"));
}

TEST_CASE("options are taken with underscores too") {
  Workplace here;
  CHECK(has(here.run("plan tiny.yaml --world_size 0").output, "--world-size: expected 1 to 1048576, got 0"));
  CHECK(has(here.run("launch --nproc_per_node=2 --grace 1e12 -- train tiny.yaml").output,
            "--grace: expected 0 to 86400, got 1e12"));
}

TEST_CASE("a launch without a number of ranks says why there is no GPU for any") {
  const std::string why = cuda_unavailable_reason();
  if (why.empty()) return skip("there is a GPU");
  Workplace here;
  const Outcome out = here.run("launch -- train tiny.yaml");
  INFO(out.output);
  CHECK(out.exit_code == 1);
  CHECK(has(out.output, "[launch] no GPU can be used here (" + why + "): set the number of ranks with -n"));
}

TEST_CASE("words in brackets are words, and an option takes an empty one in either way") {
  Workplace here;
  const Outcome trained = here.run(
      "tokenizer train text.txt --output tok --vocab-size 270 --special-tokens '[PAD]' '[a,b]' --bos-token= "
      "--eos-token='[a,b]'");
  INFO(trained.output);
  REQUIRE(trained.exit_code == 0);
  const std::string tokenizer = read_file(here / "tok/tokenizer.json");
  CHECK(has(tokenizer, "\"[PAD]\""));
  CHECK(has(tokenizer, "\"[a,b]\""));
  const std::string seen = here.run("tokenizer inspect tok").output;
  INFO(seen);
  CHECK(has(seen, "bos: none\n"));
  CHECK(has(seen, "[a,b]"));
  for (const char* ids : {"72 105", "'[72, 105]'", "'[72,' '105]'"})
    CHECK(here.run(std::string("tokenizer decode tok ") + ids).output == "Hi");
  CHECK(has(here.run("config tiny.yaml --job.description= --training.steps 3").output, "description: \"\""));
  CHECK(here.run("tokenizer encode tok -- '--x='").output == "45 45 120 61\n");
  CHECK(has(here.run("generate --checkpoint nothing --prompt '--x='").output, "nothing does not exist"));
}

TEST_CASE("an empty value, as of a shell's variable that is not set, is refused where no text is meant") {
  Workplace here;
  for (const char* command :
       {"plan tiny.yaml --device ''", "plan tiny.yaml --network=", "plan tiny.yaml --json ''",
        "init text.txt --output first --tokenizer ''", "eval out --tasks '' x",
        "report out --baseline=", "launch -n 1 --tee '' -- config", "generate --checkpoint ''",
        "generate --prompt x --prompt-file ''", "checkpoint verify ''"}) {
    const Outcome out = here.run(command);
    INFO(command << "\n" << out.output);
    CHECK(out.exit_code == 1);
    CHECK(has(out.output, ": expected a value, got nothing; see `ottava "));
    CHECK_FALSE(std::filesystem::exists(here / "first"));
  }
  CHECK(
      has(here.run("generate --checkpoint nothing --prompt '' --system=").output, "nothing does not exist"));
}

TEST_CASE("every command that takes keys says which of two values of one key it uses") {
  Workplace here;
  for (const char* command : {"config tiny.yaml", "plan tiny.yaml", "train tiny.yaml", "bench data tiny.yaml",
                              "bench kernels tiny.yaml --count", "bench train tiny.yaml"}) {
    const Outcome out = here.run(std::string(command) + " --training.seed 1 --training.seed 2");
    INFO(command << "\n" << out.output);
    CHECK(out.exit_code == 0);
    CHECK(has(out.output, "--training.seed is given twice: 2 is used, 1 is not\n"));
  }
}

TEST_CASE("numbers out of range are refused by the option's name") {
  Workplace here;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"plan tiny.yaml --world-size 0", "--world-size: expected 1 to 1048576, got 0"},
      {"plan tiny.yaml --top 1.5 --search", "--top: expected 1 to 100, got 1.5"},
      {"plan tiny.yaml --world-size 2 --device h100_sxm --training.device cuda --search --trace plan.json",
       "--trace writes one step and cannot be combined with --search: use it with a layout that --search "
       "found"},
      {"launch -n -1 -- train tiny.yaml", "--nproc-per-node: expected 0 to 4096, got -1"},
      {"launch -n 2 --nnodes 0 -- train tiny.yaml", "--nnodes: expected 1 to 65536, got 0"},
      {"launch -n 2 --node-rank -1 -- train tiny.yaml", "--node-rank: expected 0 to 65535, got -1"},
      {"launch -n 2 --nnodes 2 --node-rank 2 -- train tiny.yaml", "--node-rank is 2, expected 0 to 1"},
      {"launch -n 2 --master-port 99999 -- train tiny.yaml", "--master-port: expected 0 to 65535, got 99999"},
      {"launch -n 2 --only-rank 5 -- train tiny.yaml", "--only-rank is '5', expected ranks from 0 to 1"},
      {"launch -n 2 --grace -1 -- train tiny.yaml", "--grace: expected 0 to 86400, got -1"},
      {"launch -n 2 --grace nan -- train tiny.yaml", "--grace: expected 0 to 86400, got nan"},
      {"eval out --tasks q.jsonl --max-examples -5", "--max-examples: expected at least -1, got -5"},
      {"eval out --tasks q.jsonl --max-examples 0", "--max-examples is 0, expected -1 (all) or at least 1"},
      {"eval out --tasks q.jsonl --seq-len 1", "--seq-len: expected 2 to 1073741824, got 1"},
      {"eval out --tasks q.jsonl --batch 0", "--batch: expected at least 1, got 0"},
      {"tokenizer train text.txt --output t --vocab-size 0", "--vocab-size: expected at least 1, got 0"},
      {"tokenizer train text.txt --output t --vocab-size 3000000000",
       "--vocab-size: expected 1 to 2147483647, got 3000000000"},
      {"tokenizer train text.txt --output t --vocab-size 512 --max-bytes -5",
       "--max-bytes: expected at least 0, got -5"},
      {"data inspect text.txt --documents -1", "--documents: expected at least 0, got -1"},
      {"data inspect text.txt --seq-len 0", "--seq-len: expected 1 to 1073741824, got 0"},
      {"data inspect text.txt --seq-len 9223372036854775807",
       "--seq-len: expected 1 to 1073741824, got 9223372036854775807"},
      {"data inspect text.txt --train-on foo", "--train-on is 'foo', expected assistant, last or all"},
      {"data prepare text.txt --tokenizer t --output s --tokens-per-shard 0",
       "--tokens-per-shard: expected at least 1, got 0"},
      {"bench train tiny.yaml --steps 0", "--steps: expected at least 1, got 0"},
      {"bench train tiny.yaml --saves -1", "--saves: expected at least 0, got -1"},
      {"bench data tiny.yaml --steps 0", "--steps: expected at least 1, got 0"},
      {"bench kernels tiny.yaml --seconds -1", "--seconds: expected at least 0, got -1"},
      {"checkpoint diff out out --largest -1", "--largest: expected at least 0, got -1"},
      {"generate --checkpoint out --max-tokens 0", "--max-tokens: expected 1 to 1073741824, got 0"},
      {"generate --checkpoint out --max-tokens 1073741825",
       "--max-tokens: expected 1 to 1073741824, got 1073741825"},
      {"generate --checkpoint out --samples 0", "--samples: expected at least 1, got 0"},
      {"generate --checkpoint out --context 1", "--context: expected 2 to 1073741824, got 1"},
      {"generate --checkpoint out --context 9223372036854775807",
       "--context: expected 2 to 1073741824, got 9223372036854775807"},
      {"generate --checkpoint out --temperature -1", "--temperature: expected at least 0, got -1"},
      {"generate --checkpoint out --top-k -1", "--top-k: expected at least 0, got -1"},
      {"generate --checkpoint out --top-p 0", "--top-p is 0, expected a number in (0, 1]"},
      {"generate --checkpoint out --min-p 1.5", "--min-p: expected 0 to 1, got 1.5"},
      {"generate --checkpoint out --context 100",
       "--system, --chat-template and --context are only for conversations: add --chat"},
      {"generate --checkpoint out --system brief", "are only for conversations: add --chat"},
      {"generate --checkpoint out --chat-template llama3", "are only for conversations: add --chat"},
      {"data inspect text.txt --chat-template llama3",
       "--chat-template and --train-on are only for conversations: add --format messages, sharegpt or "
       "prompt_completion"},
      {"data inspect text.txt --train-on last", "--chat-template and --train-on are only for conversations"},
      {"generate --checkpoint out --seed -1", "--seed: expected at least 0, got -1"},
      {"config --schema --fates", "--schema"},
      {"config --comments --schema", "--schema"}};
  for (const auto& [arguments, part] : cases) {
    const Outcome out = here.run(arguments);
    INFO(arguments << "\n" << out.output);
    CHECK(out.exit_code == 1);
    CHECK(out.output.starts_with("ottava: ["));
    CHECK(has(out.output, part));
  }
}
