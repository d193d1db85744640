#include "base/trace.h"

#include <gtest/gtest.h>
#include <time.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

namespace cairn {
namespace {

using nlohmann::json;

TEST(Trace, IsJsonThatPerfettoReads) {
  Trace trace(100);
  const auto now = Trace::Clock::now();
  trace.Span("step 1", "capture", now, now + std::chrono::milliseconds(2), 1, 4096);
  trace.Span("disk \"nvme\"\n", "write \\", now, now + std::chrono::microseconds(5), 1, 7);
  trace.Span("step 1", "commit", now, now, ~0ULL, ~0ULL);

  const json parsed = json::parse(trace.ToJson());

  const json& events = parsed.at("traceEvents");
  std::vector<json> spans;
  std::map<int, std::string> rows;
  for (const json& event : events) {
    EXPECT_TRUE(event.at("pid").is_number_integer());
    if (event.at("ph") == "M") {
      EXPECT_EQ(event.at("name"), "thread_name");
      rows[event.at("tid").get<int>()] = event.at("args").at("name").get<std::string>();
    } else {
      EXPECT_EQ(event.at("ph"), "X");
      spans.push_back(event);
    }
  }
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows.at(spans[1].at("tid").get<int>()), "disk \"nvme\"\n");
  EXPECT_EQ(spans[0].at("tid"), spans[2].at("tid"));
  EXPECT_EQ(spans[0].at("name"), "capture");
  EXPECT_DOUBLE_EQ(spans[0].at("dur").get<double>(), 2000.0);
  EXPECT_EQ(spans[0].at("args").at("bytes"), 4096);
  EXPECT_EQ(spans[1].at("name"), "write \\");
  EXPECT_EQ(spans[2].at("args").at("step"), ~0ULL);
}

TEST(Trace, TimesAreThoseOfTheMonotonicClock) {
  Trace trace(1);
  timespec before{};
  ASSERT_EQ(::clock_gettime(CLOCK_MONOTONIC, &before), 0);
  const auto now = Trace::Clock::now();
  trace.Span("row", "e", now, now, 1, 0);

  const json parsed = json::parse(trace.ToJson());

  const double begun = static_cast<double>(before.tv_sec) * 1e6 + static_cast<double>(before.tv_nsec) / 1e3;
  const double at = parsed.at("traceEvents").back().at("ts").get<double>();
  EXPECT_GE(at, begun - 0.001);  // Written in whole nanoseconds.
  EXPECT_LE(at, begun + 60e6);
}

TEST(Trace, KeepsTheNewestEvents) {
  Trace trace(3);
  const auto now = Trace::Clock::now();
  for (std::uint64_t i = 0; i < 8; ++i) trace.Span("row", "e", now, now, i, 0);

  std::vector<std::uint64_t> steps;
  const json parsed = json::parse(trace.ToJson());
  for (const json& event : parsed.at("traceEvents")) {
    if (event.at("ph") == "X") steps.push_back(event.at("args").at("step").get<std::uint64_t>());
  }

  EXPECT_EQ(steps, (std::vector<std::uint64_t>{5, 6, 7}));
}

TEST(Trace, EmptyOrDisabledTraceIsValidJson) {
  Trace off(0);
  const auto now = Trace::Clock::now();
  off.Span("row", "e", now, now, 1, 0);

  EXPECT_TRUE(json::parse(off.ToJson()).at("traceEvents").empty());
  EXPECT_TRUE(json::parse(Trace(5).ToJson()).at("traceEvents").empty());
}

TEST(Trace, ManyThreadsMayRecordWhileOneWrites) {
  Trace trace(64);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&trace, t] {
      const auto now = Trace::Clock::now();
      for (int i = 0; i < 500; ++i) trace.Span("row", "e", now, now, t, 0);
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(json::accept(trace.ToJson()));
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cairn
