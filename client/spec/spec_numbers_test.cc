// Tests with extreme values for each number of a spec: suggested fixes contain valid numbers.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "client/spec/spec_text.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr char kSpec[] =
    "{name: a, data: {synthetic: {}, sequence_length: 8}, train: {steps: 3}, resources: {device: cpu}}";

void AddNumbers(const Descriptor& type, const std::string& path, std::vector<std::string>* numbers) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string name =
        absl::StrCat(path, path.empty() ? "" : ".", field.name(), field.is_repeated() ? "[0]" : "");
    if (field.message_type() != nullptr) AddNumbers(*field.message_type(), name, numbers);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64 ||
        field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      numbers->push_back(name);
    }
  }
}

bool IsWritable(const std::string& advice) {
  static const std::regex negative("(^|[^\\w.])-[0-9]"), overflowed("[0-9]{17}|e\\+[0-9]|\\b(inf|nan)\\b");
  return !std::regex_search(advice, negative) && !std::regex_search(advice, overflowed);
}

// Regression: the fix for 1e30 was "between -9223372036854775808 and 9223372036854775807".
TEST(SpecNumbers, FixesHaveValidNumbers) {
  std::vector<std::string> numbers;
  AddNumbers(*v1::JobSpec::descriptor(), "", &numbers);
  EXPECT_GT(numbers.size(), 50u);
  int advised = 0;
  for (const std::string& number : numbers) {
    for (const char* value :
         {"1e30", "-1e30", "1e400", "-1", "0", "9007199254740993", "9223372036854775807",
          "-9223372036854775808", "99999999999999999999999", "1e-400", "1e15", "-0.5", "2147483648"}) {
      const bool model = number.rfind("model.", 0) == 0;
      std::vector<std::string> sets = {absl::StrCat(number, "=", value)};
      if (!model) sets.push_back("model.preset=tiny");
      const SpecText spec = ParseSpec(kSpec, "f", sets);
      Violations violations;
      for (const LocatedViolation& fault : spec.violations) violations.push_back(fault.violation);
      // Skip memory errors: the search for a fix that fits is slow.
      const bool tight = violations.empty() && value[0] > '1';
      const int64_t budget = tight ? 1 << 20 : 0;
      for (const Violation& fault : MakePlan(spec.spec, budget, spec.unparsed).violations)
        violations.push_back(fault);
      for (const Violation& fault : violations) {
        ++advised;
        EXPECT_NE(fault.rule, "compiler_bug") << absl::StrJoin(sets, " ") << ": " << fault.reason;
        EXPECT_TRUE(IsWritable(fault.fix))
            << absl::StrJoin(sets, " ") << ": " << fault.reason << "; " << fault.fix;
      }
    }
  }
  EXPECT_GT(advised, 500);
}

}  // namespace
}  // namespace fsdpd
