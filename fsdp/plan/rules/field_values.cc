#include "fsdp/plan/rules/field_values.h"

#include <map>
#include <set>

#include "base/spec_text/enum_name.h"

namespace fsdpd {
namespace {

// docs/spec.py parses this table too.
const std::map<std::string, std::set<std::string>>& Narrow() {
  static const auto* const narrow = new std::map<std::string, std::set<std::string>>{
      {"precision.main_params", {"fp32"}},
      {"precision.main_grads", {"fp32", "bf16"}},
      {"precision.grad_comm", {"fp32", "bf16"}},
      {"precision.moments", {"fp32", "bf16", "fp8"}},
      {"fsdp.outer.strategy", {"no_shard", "optim"}},
  };
  return *narrow;
}

}  // namespace

std::vector<std::string> ValuesOf(const std::string& path, const google::protobuf::EnumDescriptor& type) {
  const auto narrow = Narrow().find(path);
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() == 0) continue;
    const std::string name = ShortEnumName(*type.value(i));
    if (narrow == Narrow().end() || narrow->second.count(name) > 0) names.push_back(name);
  }
  return names;
}

}  // namespace fsdpd
