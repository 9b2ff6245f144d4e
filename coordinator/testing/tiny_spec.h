// A job that the coordinator lets in: sound, for CPU ranks, and with a model that is planned in no time. A
// test changes what it is about.
#pragma once

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

inline v1::JobSpec TinySpec(int nodes = 1, int ranks_per_node = 1) {
  v1::JobSpec spec;
  spec.set_name("tiny");
  spec.mutable_model()->set_preset("tiny");
  spec.mutable_data()->mutable_synthetic();
  spec.mutable_data()->set_sequence_length(64);
  spec.mutable_train()->set_steps(10);
  spec.mutable_resources()->set_nodes(nodes);
  spec.mutable_resources()->set_ranks_per_node(ranks_per_node);
  spec.mutable_resources()->set_device(v1::DEVICE_CPU);
  return spec;
}

}  // namespace fsdpd
