// Valid values of enum fields, for fields whose type has values that the rules always reject
// (precision.main_grads is a DType but never fp8). Used by `explain`, docs/spec.py and the error for an
// unknown value.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

namespace fsdpd {

// Short names of the values that the field at `path` can have in a valid spec, in the order of its type.
std::vector<std::string> ValuesOf(const std::string& path, const google::protobuf::EnumDescriptor& type);

}  // namespace fsdpd
