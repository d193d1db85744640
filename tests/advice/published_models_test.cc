// Models by name: their shapes have as many parameters as are published.

#include "advice/published_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace cairn {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

TEST(PublishedModelsTest, ShapesHaveThePublishedParameters) {
  for (const std::string& name : PublishedModelNames()) {
    const auto found = FindPublishedModel(name);
    ASSERT_TRUE(found.ok()) << found.status();
    const double published = static_cast<double>(found->published_parameters);
    if (published == 0) continue;
    EXPECT_NEAR(static_cast<double>(found->model.parameters) / published, 1, 0.001)
        << name << ": " << found->model.parameters;
  }
}

TEST(PublishedModelsTest, StateIsOfFp32WeightsAndMoments) {
  const auto bytes = [](const PublishedModel& published) {
    std::uint64_t sum = 0;
    for (const ShardTensor& tensor : TensorsOf(published.model, {}, 0)) sum += IsPadding(tensor.name) ? 0 : tensor.end;
    return sum;
  };
  EXPECT_EQ(bytes(*FindPublishedModel("vgg16")), 138'357'544ULL * 8);  // Weights and momentum.
  EXPECT_EQ(bytes(*FindPublishedModel("bloom-7b1")), 7'069'016'064ULL * 12);
  // Batch norms' means, variances and counts, beside 68,883,240 parameters.
  EXPECT_EQ(bytes(*FindPublishedModel("wide-resnet50_2")), 68'883'240ULL * 12 + 2ULL * 34'112 * 4 + 53ULL * 8);
}

// Every name of PCcheck's artifact and of Merak's list.
TEST(PublishedModelsTest, KnowsTheOthersNames) {
  std::vector<std::string> known;
  for (const char* name :
       {"vgg16", "transformer", "bert", "opt-350m", "opt-1.3b", "opt-2.7b", "bloom-7b1", "bert-base-uncased",
        "bert-large-uncased", "bert-huge-uncased", "t5-3b", "gpt3-175b", "wide-resnet101_8", "bloom-3b"}) {
    EXPECT_TRUE(FindPublishedModel(name).ok()) << name;
  }
  EXPECT_EQ(FindPublishedModel("bloom-7b")->name, "bloom-7b1");
  EXPECT_THAT(PublishedModelNames(),
              IsSupersetOf({"gpt3-small", "gpt3-medium", "gpt3-large", "gpt3-xl", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b",
                            "gpt3-39b", "gpt3-80b", "t5-small", "t5-base", "t5-large", "t5-11b", "wide-resnet50_2",
                            "wide-resnet50_4", "wide-resnet50_8", "wide-resnet101_2", "wide-resnet101_4"}));
  EXPECT_THAT(FindPublishedModel("gpt4").status().message(), HasSubstr("unknown model \"gpt4\"; there are vgg16, "));
}

TEST(PublishedModelsTest, LayoutsDivideThem) {
  for (const char* name : {"gpt3-xl", "bert-large", "t5-3b", "opt-1.3b", "transformer-xl", "wide-resnet50_2"}) {
    const Model model = FindPublishedModel(name)->model;
    const Layout layout{4, model.heads == 0 ? 1 : 2, 1};
    ASSERT_TRUE(CheckLayout(model, layout, name).ok()) << CheckLayout(model, layout, name);
    for (int rank = 0; rank < layout.ranks(); ++rank) EXPECT_FALSE(TensorsOf(model, layout, rank).empty());
  }
}

}  // namespace
}  // namespace cairn
