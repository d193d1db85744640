#pragma once

#include <gtest/gtest.h>

#include <string>

#include "testing/temp_dir.h"

namespace cairn::bench {

/// What every saving strategy must do, by the strategy's name (strategies_test.cc). Each build tests the strategies it
/// has.
class StrategyTest : public testing::TestWithParam<std::string> {
 protected:
  TempDir directory_;
};

/// The same for the program bench_training, killed and resumed (resume_test.cc).
class ResumeTest : public testing::TestWithParam<std::string> {};

}  // namespace cairn::bench
