#include "fsdp/checkpoint/tensor_type.h"

namespace fsdpd {
namespace {

constexpr TensorType kTypes[] = {
    {"float32", "FloatStorage", "F32", 4},
    {"bfloat16", "BFloat16Storage", "BF16", 2},
    {"float16", "HalfStorage", "F16", 2},
    {"float64", "DoubleStorage", "F64", 8},
    {"int64", "LongStorage", "I64", 8},
    {"int32", "IntStorage", "I32", 4},
    {"int16", "ShortStorage", "I16", 2},
    {"int8", "CharStorage", "I8", 1},
    {"uint8", "ByteStorage", "U8", 1},
    {"bool", "BoolStorage", "BOOL", 1},
    {"complex64", "ComplexFloatStorage", "C64", 8},
    {"complex128", "ComplexDoubleStorage", "", 16},
    {"float8_e4m3fn", "", "F8_E4M3", 1},
    {"float8_e5m2", "", "F8_E5M2", 1},
    {"uint16", "", "U16", 2},
    {"uint32", "", "U32", 4},
    {"uint64", "", "U64", 8},
};

}  // namespace

const TensorType* FindTensorType(absl::string_view name) {
  for (const TensorType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

const TensorType* FindTensorTypeOfStorage(absl::string_view storage) {
  for (const TensorType& type : kTypes) {
    if (!storage.empty() && type.storage == storage) return &type;
  }
  return nullptr;
}

}  // namespace fsdpd
