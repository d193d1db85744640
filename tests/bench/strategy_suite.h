#pragma once

#include <gtest/gtest.h>

#include <string>

#include "testing/temp_dir.h"

namespace cairn::bench {

/// What every strategy that saves must do, by its name: strategies_test.cc. Each build tests those that it has.
class StrategyTest : public testing::TestWithParam<std::string> {
 protected:
  TempDir directory_;
};

/// The same of bench_training itself, killed and resumed: resume_test.cc.
class ResumeTest : public testing::TestWithParam<std::string> {};

}  // namespace cairn::bench
