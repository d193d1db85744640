#include "base/lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace cairn {

enum class Light : std::uint8_t { kRed, kGreen, kYellow };
constexpr bool Follows(Light from, Light to) { return static_cast<int>(to) == (static_cast<int>(from) + 1) % 3; }

namespace {

TEST(Lifecycle, ReportsATransitionThatIsForbiddenAndStays) {
  std::vector<Status> bugs;
  Lifecycle<Light> light("the light", Light::kRed, [&](Status bug) { bugs.push_back(std::move(bug)); });

  EXPECT_TRUE(light.MoveTo(Light::kGreen));
  EXPECT_FALSE(light.MoveTo(Light::kRed));

  EXPECT_EQ(*light, Light::kGreen);
  EXPECT_THAT(bugs, testing::ElementsAre(
                        Status(StatusCode::kInternal, "a bug in Cairn: the light cannot go from stage 1 to 0")));
  EXPECT_TRUE(light.MoveTo(Light::kYellow));
}

}  // namespace
}  // namespace cairn
