// What jobs, nodes and events may be listed by: the fields of their filters (list_filter.h), and what those
// mean. docs/clients.md tells people; a test holds it to these.
//
// Pure. Errors: list_filter.h's.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>

#include "coordinator/list_filter.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

template <typename T>
using ListPredicate = std::function<bool(const T&)>;

// Null for an empty filter: all.
absl::StatusOr<ListPredicate<v1::Job>> JobFilter(const std::string& filter);
absl::StatusOr<ListPredicate<v1::Node>> NodeFilter(const std::string& filter);
absl::StatusOr<ListPredicate<v1::Event>> EventFilter(const std::string& filter);

const ListFields& JobFields();
const ListFields& NodeFields();
const ListFields& EventFields();

// Puts nodes in the order that is asked for; those that are alike by their names.
absl::Status OrderNodes(const std::string& order_by, std::vector<v1::Node>* nodes);

}  // namespace fsdpd
