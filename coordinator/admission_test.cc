#include "coordinator/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"

namespace fsdpd {
namespace {

v1::JobSpec TinySpec() {
  v1::JobSpec spec;
  spec.set_name("tiny");
  spec.mutable_model()->set_preset("tiny");
  spec.mutable_data()->mutable_synthetic();
  spec.mutable_data()->set_sequence_length(64);
  spec.mutable_train()->set_steps(10);
  spec.mutable_resources()->set_device(v1::DEVICE_CPU);
  return spec;
}

std::set<std::string> ErrorFields(const Plan& plan) {
  std::set<std::string> fields;
  for (const Violation& fault : plan.faults) {
    if (fault.level == FaultLevel::kError) fields.insert(fault.field);
  }
  return fields;
}

TEST(Admission, LetsAGoodSpecInWithItsMemory) {
  const Admission admission([](v1::Device) { return 0; });
  const Plan plan = admission.Examine(TinySpec());
  EXPECT_TRUE(plan.accepted());
  EXPECT_GT(plan.memory.peak_bytes, 0);
}

TEST(Admission, RefusesWhatNoConnectedNodeCouldHold) {
  std::vector<v1::Device> asked;
  const Admission admission([&](v1::Device device) {
    asked.push_back(device);
    return int64_t{4096};
  });
  EXPECT_FALSE(admission.Examine(TinySpec()).accepted());
  EXPECT_EQ(asked, std::vector<v1::Device>{v1::DEVICE_CPU});
}

TEST(Admission, AnUnsetDeviceMeansCuda) {
  v1::Device asked = v1::DEVICE_UNSPECIFIED;
  const Admission admission([&](v1::Device device) {
    asked = device;
    return int64_t{0};
  });
  v1::JobSpec spec = TinySpec();
  spec.mutable_resources()->clear_device();
  admission.Examine(spec);
  EXPECT_EQ(asked, v1::DEVICE_CUDA);
}

TEST(Admission, TellsFaultsOfShapeAndOfMeaningTogether) {
  const Admission admission([](v1::Device) { return 0; });
  v1::JobSpec spec = TinySpec();
  spec.mutable_fsdp()->set_strategy(static_cast<v1::Strategy>(77));
  spec.set_name("Not A Name");
  const Plan plan = admission.Examine(spec);
  EXPECT_FALSE(plan.accepted());
  EXPECT_THAT(ErrorFields(plan), ::testing::IsSupersetOf({"fsdp.strategy", "name"}));
}

TEST(Admission, AnUnknownEnumNumberIsToldOnce) {
  const Admission admission([](v1::Device) { return 0; });
  v1::JobSpec spec = TinySpec();
  spec.mutable_fsdp()->set_strategy(static_cast<v1::Strategy>(77));
  spec.mutable_precision()->set_compute(static_cast<v1::DType>(77));
  const Plan plan = admission.Examine(spec);
  EXPECT_EQ(plan.faults.size(), 2u);
  EXPECT_FALSE(plan.accepted());
}

TEST(Admission, RefusesToLookAtMegabytes) {
  v1::JobSpec spec = TinySpec();
  EXPECT_TRUE(CheckSize(spec).ok());
  spec.mutable_checkpoint()->set_dir(std::string(kMaxJobSpecBytes, 'x'));
  EXPECT_EQ(CheckSize(spec).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fsdpd
