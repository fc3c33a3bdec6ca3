#include "core/metrics/step_line.h"

#include <limits>

#include "tests/support/catch.h"

using namespace ottava;

TEST_CASE("the log line is TorchTitan's, with the honest utilization behind it") {
  StepMetrics m;
  m.step = 10;
  m.global_avg_loss = 4.1234;
  m.grad_norm = 1.2345;
  m.learning_rate = 3e-4;
  m.tokens_seen = 1048576;
  m.memory_gib = 0.51;
  m.memory_percent = 0.37;
  m.tokens_per_second = 365000.4;
  m.tflops = 26.26;
  m.mfu_percent = 2.66;
  m.utilization_percent = 3.1;
  CHECK(step_line(m, false) ==
        "step: 10  loss:  4.1234  grad_norm:  1.2345  lr: 3.00e-04  tokens: 1,048,576  memory:  "
        "0.51GiB(0.37%)  "
        "tps: 365,000  tflops: 26.26  mfu: 2.66%  util: 3.10%");
  m.devices = 4;
  CHECK(step_line(m, false).find("  tps: 365,000 per rank, 1,460,002 in all  tflops") != std::string::npos);
  m.runs_float8 = true;
  m.conservative_mfu_percent = 1.33;
  CHECK(step_line(m, false).ends_with("mfu: 2.66%  mfu(fp8): 1.33%  util: 3.10%"));
  m.mfu_percent = 107.95;
  m.conservative_mfu_percent = 100;
  CHECK(step_line(m, false).ends_with("mfu: >100%  mfu(fp8): 100.00%  util: 3.10%"));
  m.z_loss = 0.00123;
  CHECK(step_line(m, false).find("  z_loss: 1.23e-03  grad_norm") != std::string::npos);
  const std::string painted = step_line(m, true);
  CHECK(painted.starts_with("\033[31mstep: 10  \033[0m\033[32mloss:  4.1234  \033[0m"));
  std::string bare;
  for (size_t i = 0; i < painted.size(); ++i) {
    if (painted[i] == '\033')
      i = painted.find('m', i);
    else
      bare += painted[i];
  }
  CHECK(bare == step_line(m, false));
}

TEST_CASE("rates are rounded once and grouped") {
  StepMetrics m;
  auto tflops = [&](double value) {
    m.tflops = value;
    const std::string line = step_line(m, false);
    const size_t begin = line.find("tflops: ") + 8;
    return line.substr(begin, line.find("  mfu") - begin);
  };
  CHECK(tflops(0.999) == "1.00");
  CHECK(tflops(0.001) == "0.00");
  CHECK(tflops(26.997) == "27.00");
  CHECK(tflops(1234.5) == "1,234.50");
  CHECK(tflops(999.999) == "1,000.00");
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(1000) == "1,000");
  CHECK(with_commas(-1234567) == "-1,234,567");
  CHECK(rate_text(1234567.6) == "1,234,568");
  CHECK(rate_text(10) == "10");
  CHECK(rate_text(9.9951) == "10");
  CHECK(rate_text(9.994) == "9.99");
  CHECK(rate_text(1) == "1");
  CHECK(rate_text(0.012345) == "0.0123");
  CHECK(rate_text(0.99999) == "1");
  CHECK(rate_text(0.00012345) == "0.000123");
  CHECK(rate_text(1e-5) == "0.00001");
  CHECK(rate_text(0) == "0");
}

TEST_CASE("what is not a number has no sign") {
  StepMetrics m;
  m.global_avg_loss = m.grad_norm = -std::numeric_limits<double>::quiet_NaN();
  m.z_loss = m.grad_norm;
  const std::string line = step_line(m, false);
  INFO(line);
  for (const char* name : {"  loss: ", "z_loss: ", "grad_norm: "}) {
    const size_t begin = line.find_first_not_of(' ', line.find(name) + std::string_view(name).size());
    CHECK(line.substr(begin, 4) == "nan ");
  }
  CHECK(unsigned_nan(-1.5) == -1.5);
}
