#include "coordinator/agents/agent_numbers.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <initializer_list>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/limits.h"
#include "coordinator/job/attempt_ref.h"

namespace fsdpd {
namespace {

namespace pb = google::protobuf;
using Field = pb::FieldDescriptor;

struct Bounds {
  double min = 0, max = 0;
  bool any = false;
};

constexpr Bounds kAny{0, 0, true};
// Doubles represent these exactly: bytes, tokens and the like.
constexpr Bounds kCount{0, 0x1p53};
constexpr Bounds kAmount{0, 1e18};  // FLOP/s of a rack, joules of a year.
constexpr Bounds kAttempt{0, kMaxAttempt};
constexpr Bounds kRank{0, kMaxWorld - 1};  // Rank of a job, or local to a node.
constexpr Bounds kStep{0, 1e9};            // The maximum of train.steps.
constexpr Bounds kSample{0, 0x1p61};       // The same number of steps with the largest batch.
constexpr Bounds kSignal{0, 255};          // Slightly more than exist.
constexpr Bounds kUnixNanos{0, 7.25e18};   // Before the year 2200.
constexpr Bounds kMilliseconds{0, 1e12};   // About thirty years, as below.
constexpr Bounds kSeconds{-1, 1e9};        // The rounding of a sum of differences may be below zero.

const std::map<std::string, Bounds>& BoundsByName() {
  static const auto& bounds = *[] {
    auto* const all = new std::map<std::string, Bounds>;
    const auto add = [all](const Bounds& bounds, std::initializer_list<const char*> names) {
      for (const char* name : names) all->emplace(name, bounds);
    };
    add(kAttempt, {"attempt", "newer_attempt"});
    add(kRank, {"rank", "ranks"});
    add(kStep, {"step", "steps", "last_step", "first_counted_step"});
    add({-kSeconds.max, kSeconds.max}, {"start_seconds"});  // Relative to a start that it may precede.
    add(kSample, {"first_sample", "end_sample"});
    add(kSignal, {"signal"});
    // Only compared or returned.
    add(kAny, {"stream_generation", "request", "number", "exit_code"});
    // Computed by the model from its data; may be non-finite.
    add(kAny, {"loss", "grad_norm", "threshold", "learning_rate", "loss_scale", "imbalance", "entropy",
               "balance_loss", "z_loss", "min_scale", "max_scale"});
    return all;
  }();
  return bounds;
}

Bounds BoundsOf(const Field& field) {
  const std::string name(field.name());
  const auto known = BoundsByName().find(name);
  if (known != BoundsByName().end()) return known->second;
  if (absl::EndsWith(name, "unix_nanos")) return kUnixNanos;
  if (absl::EndsWith(name, "_ms")) return kMilliseconds;
  if (absl::EndsWith(name, "seconds")) return kSeconds;
  return field.cpp_type() == Field::CPPTYPE_DOUBLE ? kAmount : kCount;
}

// A field that must be checked in messages of one type.
struct CheckedField {
  const Field* field;
  Bounds bounds;  // For numeric fields.
};
using WatchedKinds = std::unordered_map<const pb::Descriptor*, std::vector<CheckedField>>;

// The protos have no numbers of other types.
bool IsNumber(const Field& field) {
  const Field::CppType type = field.cpp_type();
  FSDPD_CHECK(type != Field::CPPTYPE_UINT32 && type != Field::CPPTYPE_UINT64 && type != Field::CPPTYPE_FLOAT);
  return type == Field::CPPTYPE_INT32 || type == Field::CPPTYPE_INT64 || type == Field::CPPTYPE_DOUBLE;
}

void AddKind(const pb::Descriptor* kind, WatchedKinds* kinds) {
  if (!kinds->emplace(kind, std::vector<CheckedField>()).second) return;
  std::vector<CheckedField> checked;
  for (int i = 0; i < kind->field_count(); ++i) {
    const Field* field = kind->field(i);
    if (field->cpp_type() == Field::CPPTYPE_MESSAGE) {
      AddKind(field->message_type(), kinds);
      checked.push_back({field, kAny});
    } else if (const Bounds bounds = BoundsOf(*field); IsNumber(*field) && !bounds.any) {
      checked.push_back({field, bounds});
    }
  }
  (*kinds)[kind] = std::move(checked);
}

const WatchedKinds& Kinds() {
  static const auto& kinds = *[] {
    auto* all = new WatchedKinds;
    AddKind(v1::AgentMessage::descriptor(), all);
    return all;
  }();
  return kinds;
}

template <typename Value>
std::string WhyNot(Value value, const Bounds& bounds) {
  const auto number = static_cast<double>(value);
  if (number >= bounds.min && number <= bounds.max) return "";  // The condition is false for NaN.
  return absl::StrCat(": out of range (got ", value, ", want ", bounds.min, "..", bounds.max, ")");
}

// Why the value is invalid, or "". `index`: of a repeated field; -1 for a singular field.
std::string WhyNot(const pb::Message& message, const CheckedField& checked, int index) {
  const pb::Reflection& as = *message.GetReflection();
  const Field* const field = checked.field;
  const bool many = index >= 0;
  if (field->cpp_type() == Field::CPPTYPE_INT32)
    return WhyNot(many ? as.GetRepeatedInt32(message, field, index) : as.GetInt32(message, field),
                  checked.bounds);
  if (field->cpp_type() == Field::CPPTYPE_INT64)
    return WhyNot(many ? as.GetRepeatedInt64(message, field, index) : as.GetInt64(message, field),
                  checked.bounds);
  return WhyNot(many ? as.GetRepeatedDouble(message, field, index) : as.GetDouble(message, field),
                checked.bounds);
}

std::string FirstError(const pb::Message& message);

// The path of the first error and its reason; "" if absent.
std::string ErrorOf(const pb::Message& message, const CheckedField& checked, int index) {
  const Field* field = checked.field;
  std::string error;
  if (field->cpp_type() == Field::CPPTYPE_MESSAGE) {
    const pb::Reflection& as = *message.GetReflection();
    error =
        FirstError(index >= 0 ? as.GetRepeatedMessage(message, field, index) : as.GetMessage(message, field));
    if (!error.empty()) error.insert(0, ".");
  } else {
    error = WhyNot(message, checked, index);
  }
  if (error.empty()) return "";
  return absl::StrCat(field->name(), index >= 0 ? absl::StrCat("[", index, "]") : "", error);
}

// Recursion is bounded: protobuf rejects messages nested deeper than 100 levels.
std::string FirstError(const pb::Message& message) {
  const pb::Reflection& as = *message.GetReflection();
  for (const CheckedField& checked : Kinds().at(message.GetDescriptor())) {
    const bool many = checked.field->is_repeated();
    if (!many && checked.field->has_presence() && !as.HasField(message, checked.field)) continue;
    const int count = many ? as.FieldSize(message, checked.field) : 1;
    for (int i = 0; i < count; ++i) {
      if (std::string error = ErrorOf(message, checked, many ? i : -1); !error.empty()) return error;
    }
  }
  return "";
}

}  // namespace

absl::Status CheckNumbers(const v1::AgentMessage& message) {
  const std::string error = FirstError(message);
  return error.empty() ? absl::OkStatus() : absl::InvalidArgumentError(error);
}

}  // namespace fsdpd
