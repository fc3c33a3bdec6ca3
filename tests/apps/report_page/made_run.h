#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/report_page/page.h"
#include "apps/report_page/run_history.h"
#include "core/io/json.h"
#include "tests/support/catch.h"

namespace ottava::test {

/// A folder as a run leaves it.
class MadeRun {
 public:
  explicit MadeRun(const std::string& folder) : folder_(folder) {
    std::filesystem::create_directories(folder);
  }

  static std::string line(int64_t step, double loss, const std::string& more = "") {
    return fmt::format(
        R"j({{"step":{},"time":{}.5,"loss_metrics/global_avg_loss":{},"grad_norm":1.25,"throughput(tps)":1000.0,)j"
        R"j("time_metrics/end_to_end(s)":0.5,"memory/max_active(GiB)":2.0,"n_tokens_seen":{}.0{}}})j",
        step, 1'790'000'000 + step, loss, step * 512, more);
  }
  MadeRun& metrics(const std::string& text) {
    std::ofstream(folder_ + "/metrics.jsonl") << text;
    return *this;
  }
  MadeRun& steps(int count, double final_loss = 2) {
    std::string text;
    for (int s = 1; s <= count; ++s) text += line(s, final_loss + 6.0 / s) + "\n";
    return metrics(text);
  }
  MadeRun& events(const std::string& text) {
    std::ofstream(folder_ + "/events.jsonl") << text;
    return *this;
  }
  static std::string start(int schema = 1, const std::string& config = "optimizer: {lr: 0.001}") {
    const std::string plan = R"j({"memory_bytes":1073741824,"memory":{"weights":1073741824}})j";
    return fmt::format(
               R"j({{"time":1790000000.0,"event":"start","step":0,"text":"","schema":{},"steps":50,"device":"cpu",)j"
               R"j("ranks":2,"mesh":"pp 1 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 1 = 2",)j"
               R"j("model":"llama3 debugmodel","parameters":6270208,"plan":{},"config":"{}"}})j",
               schema, plan, config) +
           "\n";
  }
  static std::string event(const std::string& name, int step, const std::string& text = "") {
    return fmt::format(R"j({{"time":1790000100.0,"event":"{}","step":{},"text":"{}"}})j", name, step, text) +
           "\n";
  }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

inline Json island(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  const std::string text = page.substr(at, page.find("</script>", at) - at);
  CHECK(text.find('<') == std::string::npos);
  return Json::parse(text, "island");
}

inline const Json& series(const Json& page, size_t run, const char* chart, const char* part) {
  return page.at("runs", "p").as_array("runs").at(run).at("series", "r").at(chart, "s").at(part, chart);
}

inline std::string page_of(const std::vector<RunHistory>& runs) {
  return report_page(runs, {}, {.now = 1'790'001'000});
}

}  // namespace ottava::test
