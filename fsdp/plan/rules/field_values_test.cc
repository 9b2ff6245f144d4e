#include "fsdp/plan/rules/field_values.h"

#include <absl/strings/str_split.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/spec_text/enum_name.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

v1::JobSpec Job(v1::Device device, int64_t outer) {
  v1::JobSpec job;
  job.set_name("tiny-llama");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(128);
  job.mutable_train()->set_steps(200);
  job.mutable_train()->set_micro_batch(4);
  job.mutable_train()->set_global_batch(16);
  job.mutable_optimizer()->set_clip_norm(1);
  job.mutable_resources()->set_nodes(2);
  job.mutable_resources()->set_ranks_per_node(2);
  job.mutable_resources()->set_device(device);
  if (outer > 1) job.mutable_fsdp()->mutable_outer()->set_size(outer);
  return job;
}

// The field at `path`, and its message.
const FieldDescriptor* Reach(const std::string& path, Message** message) {
  const FieldDescriptor* field = nullptr;
  for (const absl::string_view name : absl::StrSplit(path, '.')) {
    if (field != nullptr) *message = (*message)->GetReflection()->MutableMessage(*message, field);
    field = (*message)->GetDescriptor()->FindFieldByName(std::string(name));
  }
  return field;
}

bool SomeSpecMayHave(const std::string& path, int value) {
  for (const v1::Device device : {v1::DEVICE_CPU, v1::DEVICE_CUDA}) {
    for (const int64_t outer : {1, 2}) {
      v1::JobSpec job = Job(device, outer);
      Message* message = &job;
      const FieldDescriptor* field = Reach(path, &message);
      message->GetReflection()->SetEnumValue(message, field, value);
      if (!HasErrors(CheckJob(job))) return true;
    }
  }
  return false;
}

TEST(FieldValues, ListsValuesThatSomeValidSpecHas) {
  for (const char* path :
       {"precision.compute", "precision.main_params", "precision.main_grads", "precision.grad_comm",
        "precision.moments", "fsdp.strategy", "fsdp.recompute", "fsdp.outer.strategy", "resources.device"}) {
    v1::JobSpec job;
    Message* message = &job;
    const EnumDescriptor& type = *Reach(path, &message)->enum_type();
    const std::vector<std::string> listed = ValuesOf(path, type);
    for (int i = 0; i < type.value_count(); ++i) {
      if (type.value(i)->number() == 0) continue;
      const std::string name = ShortEnumName(*type.value(i));
      EXPECT_EQ(std::count(listed.begin(), listed.end(), name),
                SomeSpecMayHave(path, type.value(i)->number()) ? 1 : 0)
          << path << ": " << name;
    }
  }
}

}  // namespace
}  // namespace fsdpd
