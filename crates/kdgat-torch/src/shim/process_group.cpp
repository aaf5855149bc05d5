// Processes that train together: the store at which they meet, and sums over all of them (c10d with Gloo, which every libtorch has).
//
// Gloo's own headers are not part of libtorch. `gloo/` declares what c10d's header mentions: only pointers to these types pass through here,
// so their contents do not matter.
#define USE_C10D_GLOO
#include "shim.h"

#include <ATen/ATen.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace {

struct KdgatStore {
  c10::intrusive_ptr<c10d::Store> store;
};

struct KdgatGroup {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
};

void finish(const c10::intrusive_ptr<c10d::Work>& work) {
  // Throws the error of the operation; the group's time limit applies.
  work->wait();
}

} // namespace

extern "C" {

// Hosts a store on the listening socket `listening` (owned by the store from here on), or connects to the one at `host` and `port` if
// `listening` is negative. All keys begin with `prefix`.
char* kdgat_store_open(
    const char* host, uint16_t port, int32_t listening, const char* prefix, int64_t timeout_ms, KdgatStore** opened) {
  return kdgat::guarded([&] {
    // c10d prints a backtrace for each lost connection; the caller gets the error.
    FLAGS_caffe2_log_level = c10::GLOG_FATAL;
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = listening >= 0;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    if (listening >= 0) {
      options.masterListenFd = listening;
    }
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    *opened = new KdgatStore{c10::make_intrusive<c10d::PrefixStore>(prefix, store)};
  });
}

void kdgat_store_close(KdgatStore* store) {
  delete store;
}

char* kdgat_store_set(KdgatStore* store, const char* key, const uint8_t* bytes, size_t count) {
  return kdgat::guarded([&] { store->store->set(key, std::vector<uint8_t>(bytes, bytes + count)); });
}

// True if the key has a value. Does not wait.
char* kdgat_store_has(KdgatStore* store, const char* key, bool* has) {
  return kdgat::guarded([&] { *has = store->store->check({key}); });
}

// Passes the value of a key to `take`; waits for it as long as the store's time limit.
char* kdgat_store_get(
    KdgatStore* store, const char* key, void* context, void (*take)(void*, const uint8_t*, size_t)) {
  return kdgat::guarded([&] {
    std::vector<uint8_t> value = store->store->get(key);
    take(context, value.data(), value.size());
  });
}

// Connects the processes of a store. `interface` and `hostname` choose the network; at most one is not null.
char* kdgat_group_open(
    KdgatStore* store, int32_t rank, int32_t size, const char* interface, const char* hostname, int64_t timeout_ms,
    KdgatGroup** opened) {
  return kdgat::guarded([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(timeout_ms));
    if (interface != nullptr) {
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
    } else if (hostname != nullptr) {
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(hostname));
    } else {
      options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    }
    // One operation runs at a time.
    options->threads = 1;
    *opened = new KdgatGroup{c10::make_intrusive<c10d::ProcessGroupGloo>(store->store, rank, size, options)};
  });
}

void kdgat_group_close(KdgatGroup* group) {
  delete group;
}

// Replaces `tensor` by its sum over all processes.
char* kdgat_group_sum(KdgatGroup* group, const at::Tensor* tensor) {
  return kdgat::guarded([&] {
    std::vector<at::Tensor> tensors{tensor->detach()};
    finish(group->group->allreduce(tensors));
  });
}

// Replaces `tensor` by that of process `root`.
char* kdgat_group_broadcast(KdgatGroup* group, const at::Tensor* tensor, int32_t root) {
  return kdgat::guarded([&] {
    std::vector<at::Tensor> tensors{tensor->detach()};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    finish(group->group->broadcast(tensors, options));
  });
}

// Fills the rows of `gathered`, `[processes, ...]`, with the tensors of all processes, each sent to each: for a few kilobytes and a few
// processes this is faster than c10d's operations, which pass through a thread of their own.
char* kdgat_group_exchange(KdgatGroup* group, const at::Tensor* tensor, const at::Tensor* gathered, int32_t tag) {
  return kdgat::guarded([&] {
    const int rank = group->group->getRank();
    const int size = group->group->getSize();
    std::vector<at::Tensor> own{tensor->detach()};
    std::vector<at::Tensor> rows = gathered->detach().unbind(0);
    rows[rank].copy_(own[0]);
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int other = 0; other < size; ++other) {
      if (other != rank) {
        std::vector<at::Tensor> row{rows[other]};
        works.push_back(group->group->recv(row, other, tag));
      }
    }
    for (int other = 0; other < size; ++other) {
      if (other != rank) {
        works.push_back(group->group->send(own, other, tag));
      }
    }
    for (const auto& work : works) {
      finish(work);
    }
  });
}

// Fills the rows of `gathered`, `[processes, ...]`, with the tensors of all processes.
char* kdgat_group_gather(KdgatGroup* group, const at::Tensor* tensor, const at::Tensor* gathered) {
  return kdgat::guarded([&] {
    std::vector<at::Tensor> inputs{tensor->detach()};
    std::vector<std::vector<at::Tensor>> outputs{gathered->detach().unbind(0)};
    finish(group->group->allgather(outputs, inputs));
  });
}
}
