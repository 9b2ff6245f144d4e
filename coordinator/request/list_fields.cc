#include "coordinator/request/list_fields.h"

#include <absl/strings/ascii.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/generated_enum_reflection.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/spec_text/enum_name.h"

namespace fsdpd {
namespace {

using Kind = ListField::Kind;

template <typename T>
struct Column {
  ListField field;
  ListValue (*value)(const T& of, const std::string& key);
};
template <typename T>
using Columns = std::vector<Column<T>>;

ListValue Text(const std::string& text) { return {{text}}; }
ListValue Number(int64_t number) { return {{}, number}; }

template <typename Enum>
std::vector<std::string> NamesOf() {
  std::vector<std::string> names;
  const auto& kind = *google::protobuf::GetEnumDescriptor<Enum>();
  for (int i = 0; i < kind.value_count(); ++i) {
    const auto number = static_cast<size_t>(kind.value(i)->number());
    names.resize(std::max(names.size(), number + 1));
    names[number] = absl::AsciiStrToUpper(ShortEnumName(*kind.value(i)));
  }
  return names;
}

ListValue LabelOf(const google::protobuf::RepeatedPtrField<v1::Label>& labels, const std::string& key) {
  ListValue value;
  for (const v1::Label& label : labels) {
    if (label.key() == key) value.texts.push_back(label.value());
  }
  return value;
}

const Columns<v1::Job>& JobColumns() {
  using Job = v1::Job;
  static const auto& columns = *new Columns<Job>{
      {{"id", Kind::kText}, [](const Job& job, const std::string&) { return Text(job.id()); }},
      {{"name", Kind::kText}, [](const Job& job, const std::string&) { return Text(job.spec().name()); }},
      {{"state", Kind::kName, NamesOf<v1::JobState>()},
       [](const Job& job, const std::string&) { return Number(job.state()); }},
      {{"reason", Kind::kText}, [](const Job& job, const std::string&) { return Text(job.reason()); }},
      {{"cause", Kind::kName, NamesOf<v1::FailureCause>()},
       [](const Job& job, const std::string&) { return Number(job.failure().cause()); }},
      {{"project", Kind::kText}, [](const Job& job, const std::string&) { return Text(job.project()); }},
      {{"submitter", Kind::kText}, [](const Job& job, const std::string&) { return Text(job.submitter()); }},
      {{"priority", Kind::kNumber},
       [](const Job& job, const std::string&) { return Number(job.spec().priority()); }},
      {{"preemptible", Kind::kBool},
       [](const Job& job, const std::string&) { return Number(job.preemptible() ? 1 : 0); }},
      {{"attempt", Kind::kNumber}, [](const Job& job, const std::string&) { return Number(job.attempt()); }},
      {{"step", Kind::kNumber},
       [](const Job& job, const std::string&) { return Number(job.last_step().step()); }},
      {{"node", Kind::kText},
       [](const Job& job, const std::string&) {
         ListValue value;
         for (const Job::Placement& placement : job.placements()) value.texts.push_back(placement.node());
         return value;
       }},
      {{"after", Kind::kText},
       [](const Job& job, const std::string&) {
         ListValue value;
         for (const Job::After& after : job.after()) value.texts.push_back(after.job());
         return value;
       }},
      {{"create_time", Kind::kTime},
       [](const Job& job, const std::string&) { return Number(job.create_unix_nanos()); }},
      {{"start_time", Kind::kTime},
       [](const Job& job, const std::string&) { return Number(job.start_unix_nanos()); }},
      {{"end_time", Kind::kTime},
       [](const Job& job, const std::string&) { return Number(job.end_unix_nanos()); }},
      {{"labels.", Kind::kText},
       [](const Job& job, const std::string& key) { return LabelOf(job.labels(), key); }},
  };
  return columns;
}

const Columns<v1::Node>& NodeColumns() {
  using Node = v1::Node;
  static const auto& columns = *new Columns<Node>{
      {{"name", Kind::kText}, [](const Node& node, const std::string&) { return Text(node.name()); }},
      {{"connected", Kind::kBool},
       [](const Node& node, const std::string&) { return Number(node.connected() ? 1 : 0); }},
      {{"not_ready", Kind::kBool},
       [](const Node& node, const std::string&) { return Number(node.not_ready() ? 1 : 0); }},
      {{"left", Kind::kBool},
       [](const Node& node, const std::string&) { return Number(node.left() ? 1 : 0); }},
      {{"cordoned", Kind::kBool},
       [](const Node& node, const std::string&) { return Number(node.has_cordon() ? 1 : 0); }},
      {{"draining", Kind::kBool},
       [](const Node& node, const std::string&) { return Number(node.cordon().has_drain() ? 1 : 0); }},
      {{"reason", Kind::kText},
       [](const Node& node, const std::string&) { return Text(node.cordon().reason()); }},
      {{"device", Kind::kName, NamesOf<v1::Device>()},
       [](const Node& node, const std::string&) { return Number(node.device()); }},
      {{"slots", Kind::kNumber}, [](const Node& node, const std::string&) { return Number(node.slots()); }},
      {{"free_slots", Kind::kNumber},
       [](const Node& node, const std::string&) { return Number(node.free_slots()); }},
      {{"memory_bytes_per_slot", Kind::kNumber},
       [](const Node& node, const std::string&) { return Number(node.memory_bytes_per_slot()); }},
      {{"host_memory_bytes", Kind::kNumber},
       [](const Node& node, const std::string&) { return Number(node.host_memory_bytes()); }},
      {{"version", Kind::kText}, [](const Node& node, const std::string&) { return Text(node.version()); }},
      {{"last_seen_time", Kind::kTime},
       [](const Node& node, const std::string&) { return Number(node.last_seen_unix_nanos()); }},
      {{"nvlink_domain", Kind::kText},
       [](const Node& node, const std::string&) { return Text(node.nvlink_domain()); }},
      {{"labels.", Kind::kText},
       [](const Node& node, const std::string& key) { return LabelOf(node.labels(), key); }},
  };
  return columns;
}

const Columns<v1::Event>& EventColumns() {
  using Event = v1::Event;
  static const auto& columns = *new Columns<Event>{
      {{"kind", Kind::kName, NamesOf<v1::EventKind>()},
       [](const Event& event, const std::string&) { return Number(event.kind()); }},
      {{"job", Kind::kText}, [](const Event& event, const std::string&) { return Text(event.job()); }},
      {{"node", Kind::kText}, [](const Event& event, const std::string&) { return Text(event.node()); }},
      {{"attempt", Kind::kNumber},
       [](const Event& event, const std::string&) { return Number(event.attempt()); }},
      {{"state", Kind::kName, NamesOf<v1::JobState>()},
       [](const Event& event, const std::string&) { return Number(event.state()); }},
      {{"cause", Kind::kName, NamesOf<v1::FailureCause>()},
       [](const Event& event, const std::string&) { return Number(event.cause()); }},
      {{"time", Kind::kTime},
       [](const Event& event, const std::string&) { return Number(event.unix_nanos()); }},
      {{"message", Kind::kText},
       [](const Event& event, const std::string&) { return Text(event.message()); }},
  };
  return columns;
}

template <typename T>
ListFields FieldsOf(const Columns<T>& columns) {
  ListFields fields;
  for (const Column<T>& column : columns) fields.push_back(column.field);
  return fields;
}

template <typename T>
absl::StatusOr<ListPredicate<T>> FilterOf(const std::string& text, const ListFields& fields,
                                          const Columns<T>& columns) {
  FSDPD_ASSIGN_OR_RETURN(ListFilter parsed, ListFilter::Parse(text, fields));
  if (parsed.empty()) return ListPredicate<T>();
  return ListPredicate<T>([filter = std::move(parsed), &columns](const T& of) {
    return filter.Holds([&](size_t field, const std::string& key) { return columns[field].value(of, key); });
  });
}

int64_t OrderValue(const v1::Node& node, size_t field) {
  const int64_t values[] = {0, node.slots(), node.free_slots(), node.last_seen_unix_nanos()};
  return values[field];
}

}  // namespace

const ListFields& JobFields() {
  static const auto& fields = *new ListFields(FieldsOf(JobColumns()));
  return fields;
}
const ListFields& NodeFields() {
  static const auto& fields = *new ListFields(FieldsOf(NodeColumns()));
  return fields;
}
const ListFields& EventFields() {
  static const auto& fields = *new ListFields(FieldsOf(EventColumns()));
  return fields;
}

absl::StatusOr<ListPredicate<v1::Job>> JobFilter(const std::string& filter) {
  return FilterOf(filter, JobFields(), JobColumns());
}
absl::StatusOr<ListPredicate<v1::Node>> NodeFilter(const std::string& filter) {
  return FilterOf(filter, NodeFields(), NodeColumns());
}
absl::StatusOr<ListPredicate<v1::Event>> EventFilter(const std::string& filter) {
  return FilterOf(filter, EventFields(), EventColumns());
}

absl::Status OrderNodes(const std::string& order_by, std::vector<v1::Node>* nodes) {
  FSDPD_ASSIGN_OR_RETURN(const ListOrder order,
                         ParseListOrder(order_by, {"name", "slots", "free_slots", "last_seen_time"}, {}));
  std::sort(nodes->begin(), nodes->end(), [&](const v1::Node& a, const v1::Node& b) {
    const v1::Node& first = order.descending ? b : a;
    const v1::Node& second = order.descending ? a : b;
    const int64_t left = OrderValue(first, order.field), right = OrderValue(second, order.field);
    if (order.field == 0) return first.name() < second.name();
    return left != right ? left < right : a.name() < b.name();
  });
  return absl::OkStatus();
}

}  // namespace fsdpd
