#pragma once

#include "tests/apps/step/small_job.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"

namespace ottava::test {

/// The job on ranks of `ottava launch`; run() expects success, run_from() also that the run begins after the
/// checkpoint of step `saved`, check_refused() that every rank says `text`.
inline std::string launch(int ranks, const std::string& command) {
  return std::string(OTTAVA) + " launch -n " + std::to_string(ranks) + " --" + command;
}
inline void run(const std::string& command) {
  const Outcome o = run_command(command);
  INFO(command << "\n" << o.output);
  REQUIRE(o.exit_code == 0);
}
inline void run_from(int64_t saved, const std::string& command) {
  const Outcome o = run_command(command);
  INFO(command << "\n" << o.output);
  REQUIRE(o.exit_code == 0);
  CHECK_THAT(o.output, Catch::Contains(fmt::format("Training starts at step {}\n", saved + 1)));
}

inline void check_refused(const std::string& command, int ranks, const std::string& text) {
  const Outcome o = run_command(command);
  INFO(command << "\nexpected on all ranks: " << text << "\n" << o.output);
  CHECK(o.exit_code != 0);
  CHECK_FALSE(o.timed_out);
  CHECK(o.all_say(ranks, text));
}

inline void require_near(const Curve& got, const Curve& want) {
  REQUIRE(!want.empty());
  REQUIRE(got.size() == want.size());
  for (const auto& [step, point] : want) {
    INFO("step " << step);
    REQUIRE(got.at(step).loss == Approx(point.loss).epsilon(1e-5));
    REQUIRE(got.at(step).grad_norm == Approx(point.grad_norm).epsilon(1e-5));
  }
}

inline std::map<int64_t, double> validation_losses(const Job& job) {
  std::map<int64_t, double> losses;
  for (const Json& json : logged_lines(job.out()))
    if (const Json* loss = json.find("validation_metrics/loss"))
      losses[json.at("step", "metrics").as_integer("step")] = loss->as_number("loss");
  return losses;
}

/// Options for questions in the words of the job's text, which are in a file there. Their choices are equally
/// long: which is taken depends on what it says.
inline std::string ask(const Job& job, int64_t seq_len) {
  std::ofstream items(job.in("items.jsonl"));
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    const std::string query = drawn_words(random, 8), first = drawn_words(random, 3),
                      second = drawn_words(random, 3), third = drawn_words(random, 3);
    items << fmt::format(R"({{"query": "{}", "choices": ["{}", "{}", "{}"], "gold": {}}})", query, first,
                         second, third, random() % 3)
          << "\n";
  }
  return fmt::format(
      " --evaluation.enable true --evaluation.freq 3 --evaluation.tasks \"[{{name: items, path: {}}}]\" "
      "--validation.seq_len {} --validation.local_batch_size 2 ",
      job.in("items.jsonl"), seq_len);
}
/// Every score of every step, in the order of the file.
inline std::vector<double> scores(const Job& job) {
  std::vector<double> out;
  for (const Json& json : logged_lines(job.out())) {
    for (const char* score : {"acc", "acc_norm", "acc_bytes"}) {
      if (const Json* value = json.find(std::string("evaluation_metrics/items/") + score))
        out.push_back(value->as_number(score));
    }
  }
  return out;
}

}  // namespace ottava::test
