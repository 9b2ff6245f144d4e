#include "fsdp/model/user_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

namespace fsdpd {
namespace {

using Units = std::vector<std::unique_ptr<Unit>>;
using ::testing::HasSubstr;

class Model : public UserModel {
 public:
  explicit Model(std::function<Units()> make) : make_(std::move(make)) {}
  ModelDescription Describe() const override { return {}; }
  Units MakeUnits(const ModelFacts& facts, at::Device device) const override { return make_(); }

 private:
  std::function<Units()> make_;
};

ModelFacts TwoUnits() {
  ModelFacts facts;
  facts.units.resize(2);
  return facts;
}

TEST(UserModel, ConvertsExceptionToStatus) {
  const auto units = MakeUserUnits(Model([]() -> Units { throw std::invalid_argument("layers is 0"); }),
                                   TwoUnits(), at::kCPU);
  EXPECT_THAT(units.status().ToString(), HasSubstr("layers is 0"));
}

TEST(UserModel, RejectsWrongNumberOfUnits) {
  const auto units = MakeUserUnits(Model([] { return Units(); }), TwoUnits(), at::kCPU);
  EXPECT_EQ(units.status().message(), "MakeUnits: wrong number of units (got 0, want 2)");
  EXPECT_EQ(MakeUserUnits(Model([] { return Units(2); }), TwoUnits(), at::kCPU).status().message(),
            "MakeUnits: wrong number of units (got 0, want 2)");
}

}  // namespace
}  // namespace fsdpd
