// Filter fields of jobs, nodes and events (list_filter.h) and their meaning. docs/clients.md documents them,
// and a test compares the two.
//
// Pure. Errors are those of list_filter.h.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>

#include "coordinator/request/list_filter.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

template <typename T>
using ListPredicate = std::function<bool(const T&)>;

// Return null for an empty filter, which matches everything.
absl::StatusOr<ListPredicate<v1::Job>> JobFilter(const std::string& filter);
absl::StatusOr<ListPredicate<v1::Node>> NodeFilter(const std::string& filter);
absl::StatusOr<ListPredicate<v1::Event>> EventFilter(const std::string& filter);

const ListFields& JobFields();
const ListFields& NodeFields();
const ListFields& EventFields();

// Sorts nodes by `order_by`; ties are broken by name.
absl::Status OrderNodes(const std::string& order_by, std::vector<v1::Node>* nodes);

}  // namespace fsdpd
