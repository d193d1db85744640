// include/cairn/torch.h, with what modules and optimizers may hold.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/rmsprop.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <utility>
#include <vector>

#include "cairn/cairn.h"
#include "cairn/torch.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
namespace optim = torch::optim;

/// A projection that shares its weights with the embedding, a frozen scale, and tensors of unusual kinds.
struct OddModule : torch::nn::Module {
  OddModule() {
    embedding = register_parameter("embedding", at::randn({6, 4}));
    projection = register_parameter("projection", embedding);
    scale = register_parameter("scale", at::randn({}));
    half = register_parameter("half", at::randn({3}).to(at::kHalf));
    rounded = register_parameter("rounded", at::randn({3}).to(at::kBFloat16));
    empty = register_parameter("empty", at::randn({0, 5}));
    across = register_parameter("across", at::randn({3, 2}).t());
    frozen = register_parameter("frozen", at::randn({4}), /*requires_grad=*/false);
    register_buffer("count", at::zeros({}, at::kLong));
    register_buffer("flags", at::ones({3}, at::kBool));
  }
  at::Tensor Loss() const {
    const at::Tensor sums = half.to(at::kFloat).square().sum() + rounded.to(at::kFloat).square().sum();
    return (embedding.matmul(projection.t()).square().sum() + across.square().sum() + empty.sum() + sums) * scale +
           frozen.sum();
  }
  at::Tensor embedding, projection, scale, half, rounded, empty, across, frozen;
};

using Make = std::function<std::unique_ptr<optim::Optimizer>(const OddModule&)>;
using MakeParam = std::pair<const char*, Make>;

/// The parameters in two groups, the second with twice the rate.
template <typename Kind, typename KindOptions>
Make InGroups(KindOptions options) {
  return [options](const OddModule& model) {
    auto faster = std::make_unique<KindOptions>(options);
    faster->lr(2 * options.lr());
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{model.embedding, model.scale, model.frozen, model.half});
    groups.emplace_back(std::vector<at::Tensor>{model.rounded, model.empty, model.across}, std::move(faster));
    return std::make_unique<Kind>(std::move(groups), options);
  };
}

void TrainStep(const OddModule& model, optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  model.Loss().backward();
  optimizer.step();
}

std::string Bytes(const OddModule& model) {
  std::string all;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor whole = item.value().contiguous();
    all.append(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
  }
  return all;
}

class Optimizers : public testing::TestWithParam<MakeParam> {};

TEST_P(Optimizers, GoOnBitByBitInAnotherProcess) {
  const TempDir root;
  const OddModule model;
  const auto optimizer = GetParam().second(model);
  TrainStep(model, *optimizer);
  TrainStep(model, *optimizer);
  State state;
  ASSERT_TRUE(AddModule(state, model).ok());
  const auto added = AddOptimizer(state, *optimizer, model.named_parameters());
  ASSERT_TRUE(added.ok()) << added;
  ASSERT_TRUE(SetOptimizerValues(state, *optimizer, model.named_parameters()).ok());
  {
    const auto checkpointer = Checkpointer::Open({.root = root.path()});
    ASSERT_TRUE(checkpointer.ok());
    const auto save = (*checkpointer)->Save(2, state);
    ASSERT_TRUE(save.ok() && save->WaitDurable().ok());
  }

  const OddModule other;
  const auto resumed = GetParam().second(other);
  State target;
  ASSERT_TRUE(AddModule(target, other).ok());
  ASSERT_TRUE(AddOptimizer(target, *resumed, other.named_parameters()).ok());
  const auto checkpointer = Checkpointer::Open({.root = root.path()});
  const auto restored = (*checkpointer)->Restore(Latest(), target);
  ASSERT_TRUE(restored.ok()) << restored.status();
  const auto values = ResumeOptimizer(restored->values, *resumed, other.named_parameters());
  ASSERT_TRUE(values.ok()) << values;
  EXPECT_EQ(Bytes(other), Bytes(model));
  for (int i = 0; i < 3; ++i) {
    TrainStep(model, *optimizer);
    TrainStep(other, *resumed);
  }
  EXPECT_EQ(Bytes(other), Bytes(model));
}

INSTANTIATE_TEST_SUITE_P(
    All, Optimizers,
    testing::Values(MakeParam{"Sgd", InGroups<optim::SGD>(optim::SGDOptions(1.0))},
                    MakeParam{"Momentum", InGroups<optim::SGD>(optim::SGDOptions(1e-3).momentum(0.9).nesterov(true))},
                    MakeParam{"Adam", InGroups<optim::Adam>(optim::AdamOptions(0))},
                    MakeParam{"Amsgrad", InGroups<optim::Adam>(optim::AdamOptions(1e-3).amsgrad(true))},
                    MakeParam{"AdamW", InGroups<optim::AdamW>(optim::AdamWOptions(5e-324).amsgrad(true))}),
    [](const auto& one) { return one.param.first; });

TEST(TorchHeader, OptimizerMayHoldATiedParameterUnderBothNames) {
  const OddModule model;
  optim::AdamW optimizer(model.parameters(), optim::AdamWOptions(1e-3));
  State state;

  const Status added = AddOptimizer(state, optimizer, model.named_parameters());
  ASSERT_TRUE(added.ok()) << added;
  EXPECT_TRUE(SetOptimizerValues(state, optimizer, model.named_parameters()).ok());

  EXPECT_TRUE(state.values().contains("optimizer.step.embedding"));  // The first name, as in Python.
  EXPECT_FALSE(state.values().contains("optimizer.step.projection"));
}

TEST(TorchHeader, RefusedOptimizerIsUnchanged) {
  const OddModule model;
  optim::RMSprop optimizer({model.embedding, model.scale}, optim::RMSpropOptions(1e-3));
  State state;

  EXPECT_EQ(AddOptimizer(state, optimizer, model.named_parameters()).code(), StatusCode::kInvalidArgument);

  EXPECT_TRUE(optimizer.state().empty());
  TrainStep(model, optimizer);
}

TEST(TorchHeader, ValuesOfAnOptimizerThatWasNotAddedAreRefused) {
  const OddModule model;
  optim::AdamW adamw({model.embedding, model.scale}, optim::AdamWOptions(1e-3));
  optim::SGD sgd({model.embedding, model.scale}, optim::SGDOptions(1e-3).momentum(0.9));
  State state;

  const Status set = SetOptimizerValues(state, adamw, model.named_parameters());
  const Status resumed =
      ResumeOptimizer({{"optimizer.step.embedding", std::int64_t{3}}}, adamw, model.named_parameters());

  EXPECT_EQ(set.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(set.message(), HasSubstr("embedding"));
  EXPECT_EQ(resumed.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(SetOptimizerValues(state, sgd, model.named_parameters()).ok());
  TrainStep(model, adamw);  // Which would meet half a state.
  TrainStep(model, sgd);
}

TEST(TorchHeader, ValuesOfAnotherKindOfOptimizerAreRefused) {
  // AdamW's state has Adam's names and shapes; what only the checkpoint has, a restore ignores.
  const OddModule model;
  const auto values_of = [&](optim::Optimizer& optimizer) {
    State state;
    EXPECT_TRUE(AddOptimizer(state, optimizer, model.named_parameters()).ok());
    EXPECT_TRUE(SetOptimizerValues(state, optimizer, model.named_parameters()).ok());
    return state.values();
  };
  const std::vector<at::Tensor> both{model.embedding, model.scale};
  optim::Adam adam(both, optim::AdamOptions(1e-3));
  optim::AdamW adamw(both, optim::AdamWOptions(1e-3));
  optim::Adam amsgrad(both, optim::AdamOptions(1e-3).amsgrad(true));
  optim::Adam in_groups({optim::OptimizerParamGroup({model.embedding}), optim::OptimizerParamGroup({model.scale})},
                        optim::AdamOptions(1e-3));
  const Values own = values_of(adam);

  for (optim::Optimizer* other : std::initializer_list<optim::Optimizer*>{&adamw, &amsgrad, &in_groups}) {
    const Status resumed = ResumeOptimizer(values_of(*other), adam, model.named_parameters());
    EXPECT_EQ(resumed.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(resumed.message(), AnyOf(HasSubstr("the optimizer is Adam, the checkpoint has the state of Adam"),
                                         HasSubstr("1 groups, the checkpoint has more")));
  }
  EXPECT_TRUE(ResumeOptimizer(own, adam, model.named_parameters()).ok());
  Values older = own;
  older.erase("optimizer.kind.0");
  EXPECT_TRUE(ResumeOptimizer(older, adam, model.named_parameters()).ok());
}

TEST(TorchHeader, MomentumMayBeSetAfterwards) {
  const OddModule model;
  optim::SGD optimizer({model.embedding, model.scale}, optim::SGDOptions(1e-3));
  State state;
  ASSERT_TRUE(AddOptimizer(state, optimizer, model.named_parameters()).ok());

  static_cast<optim::SGDOptions&>(optimizer.param_groups()[0].options()).momentum(0.9);

  TrainStep(model, optimizer);
}

TEST(TorchHeader, TensorsWithoutMemoryOfTheirOwnAreRefused) {
  State state;
  const auto refused = [&](const at::Tensor& tensor) { return Add(state, "t", tensor).message(); };
  EXPECT_THAT(refused(at::Tensor()), HasSubstr("not defined"));
  EXPECT_THAT(refused(at::ones({3}).to_sparse()), HasSubstr("sparse"));
  EXPECT_THAT(refused(at::empty({3}, at::kMeta)), HasSubstr("meta"));
  EXPECT_THAT(refused(at::ones({3}, at::kComplexFloat).conj()), HasSubstr("conjugated"));
  EXPECT_THAT(refused(at::ones({3}, at::kComplexDouble)), HasSubstr("ComplexDouble"));
  EXPECT_THAT(refused(at::_efficientzerotensor({3})), HasSubstr("tensor \"t\""));
  EXPECT_EQ(state.tensor_count(), 0U);
}

TEST(TorchHeader, FileStoreOutlivesTheGroupsOverIt) {
  const TempDir folder;
  const std::string file = folder / "store";
  std::vector<c10::intrusive_ptr<c10d::Store>> stores;
  for (int rank = 0; rank < 2; ++rank) {
    stores.push_back(c10::make_intrusive<c10d::PrefixStore>("job", c10::make_intrusive<c10d::FileStore>(file, 2)));
  }
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<Group>> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(
          *MakeTorchGroup(stores[static_cast<std::size_t>(rank)], {.rank = rank, .size = 2, .name = "run7"}));
    }
    std::promise<Status> end;
    ranks[1]->Send("key", "word");
    ranks[0]->Collect(
        "key", Deadline::In(std::chrono::seconds(20)), [](int, const std::string&) {},
        [&](const Status& status) { end.set_value(status); });
    const Status status = end.get_future().get();
    EXPECT_TRUE(status.ok()) << status;
    ranks.clear();
    EXPECT_TRUE(std::filesystem::exists(file));
  }
  stores.clear();
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(TorchHeader, GroupWithoutAStoreIsRefused) {
  EXPECT_EQ(MakeTorchGroup({}, {.rank = 0, .size = 2, .name = "run7"}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
