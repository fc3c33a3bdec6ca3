#include <cstring>

#include "core/bf16.h"
#include "memory.h"
#include "nccl.h"

namespace ottava::cuda_host {
namespace {

template <class T, class Sum>
void reduce_as(const NcclOperation& operation, size_t offset, size_t count, std::vector<char>& out) {
  std::vector<T> mine(count);
  std::vector<Sum> total(count);
  for (size_t r = 0; r < operation.calls.size(); ++r) {
    std::memcpy(mine.data(), static_cast<const char*>(operation.calls[r].send) + offset * sizeof(T),
                count * sizeof(T));
    for (size_t i = 0; i < count; ++i) {
      const Sum next = static_cast<Sum>(mine[i]);
      if (r == 0) {
        total[i] = next;
      } else if (operation.calls[0].op == ncclSum) {
        if constexpr (std::is_integral_v<Sum>) {
          total[i] = static_cast<Sum>(static_cast<uint64_t>(total[i]) + static_cast<uint64_t>(next));
        } else {
          total[i] += next;
        }
      } else {
        const bool replaces = operation.calls[0].op == ncclMax ? next > total[i] : next < total[i];
        if (replaces) total[i] = next;
      }
    }
  }
  out.resize(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    const T rounded = static_cast<T>(total[i]);
    std::memcpy(out.data() + i * sizeof(T), &rounded, sizeof(T));
  }
}

std::vector<char> reduced(const NcclOperation& operation, size_t offset, size_t count) {
  std::vector<char> out;
  switch (operation.calls[0].type) {
    case ncclFloat32:
      reduce_as<float, float>(operation, offset, count, out);
      break;
    case ncclBfloat16:
      reduce_as<bf16, float>(operation, offset, count, out);
      break;
    case ncclFloat64:
      reduce_as<double, double>(operation, offset, count, out);
      break;
    case ncclInt32:
      reduce_as<int32_t, int32_t>(operation, offset, count, out);
      break;
    case ncclUint32:
      reduce_as<uint32_t, uint32_t>(operation, offset, count, out);
      break;
    default:
      reduce_as<int64_t, int64_t>(operation, offset, count, out);
      break;
  }
  return out;
}

bool is_reducible(ncclDataType_t type) {
  return type == ncclFloat32 || type == ncclBfloat16 || type == ncclFloat64 || type == ncclInt32 ||
         type == ncclUint32 || type == ncclInt64;
}

// A bare block is copied first: one rank's result may be another's operand.
std::vector<char> block_of(const NcclCall& call) {
  std::vector<char> bytes(call.count * nccl_size_of(call.type));
  std::memcpy(bytes.data(), call.send, bytes.size());
  return bytes;
}

// In place a rank's own block is read and never written.
void put(void* to, const std::vector<char>& bytes, const void* own = nullptr) {
  if (to != own) std::memcpy(to, bytes.data(), bytes.size());
}

struct Range {
  const char* begin;
  size_t bytes;
  bool overlaps(const Range& other) const {
    return bytes && other.bytes && begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

Range sent(const NcclCall& c, int ranks) {
  size_t blocks = c.kind == NcclKind::reduce_scatter ? static_cast<size_t>(ranks) : 1;
  const bool is_unused = c.kind == NcclKind::recv;
  return {static_cast<const char*>(c.send), is_unused ? 0 : c.count * blocks * nccl_size_of(c.type)};
}
Range received(const NcclCall& c, int ranks) {
  size_t blocks = c.kind == NcclKind::all_gather ? static_cast<size_t>(ranks) : 1;
  const bool is_unused = c.kind == NcclKind::send;
  return {static_cast<const char*>(c.recv), is_unused ? 0 : c.count * blocks * nccl_size_of(c.type)};
}

bool reduces(const NcclCall& c) {
  return c.kind == NcclKind::all_reduce || c.kind == NcclKind::reduce_scatter;
}

bool is_in_place(const NcclCall& c, int rank) {
  const size_t offset = static_cast<size_t>(rank) * c.count * nccl_size_of(c.type);
  const auto *send = static_cast<const char*>(c.send), *recv = static_cast<const char*>(c.recv);
  if (c.kind == NcclKind::all_gather) return send == recv + offset;
  if (c.kind == NcclKind::reduce_scatter) return recv == send + offset;
  return send == recv;
}

}  // namespace

size_t nccl_size_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
    case ncclInt64:
    case ncclUint64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
    case ncclUint32:
      return 4;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

bool agree(const NcclCall& a, const NcclCall& b) {
  return a.kind == b.kind && a.type == b.type && a.count == b.count && a.peer == b.peer &&
         a.in_graph == b.in_graph && (!reduces(a) || a.op == b.op);
}

const char* objection(const NcclCall& c, int rank, int ranks, int gpu) {
  if (c.peer < 0 || c.peer >= ranks) return "no such rank";
  if (reduces(c) && !is_reducible(c.type)) return "this type is not reduced by the stand-in";
  const Range in = sent(c, ranks), out = received(c, ranks);
  if (in.overlaps(out) && !is_in_place(c, rank))
    return "buffers overlap and are not in place as NCCL defines it";
  for (const Range& range : {in, out}) {
    if (!range.bytes) continue;
    if (kind_of(range.begin) == MemoryKind::none) return "a buffer is not memory of the GPU";
    if (bytes_behind(range.begin) < range.bytes) return "a buffer reaches past its allocation";
    if (gpu_of(range.begin) != gpu) return "a buffer is on another GPU than its communicator";
  }
  return nullptr;
}

void spoil_result(const NcclCall& c, int rank, int ranks) {
  const Range out = received(c, ranks);
  if (!out.bytes) return;
  auto* begin = static_cast<char*>(c.recv);
  if (!is_in_place(c, rank)) {
    std::memset(begin, 0xff, out.bytes);
  } else if (c.kind == NcclKind::all_gather) {
    const size_t block = out.bytes / static_cast<size_t>(ranks), mine = block * static_cast<size_t>(rank);
    if (mine) std::memset(begin, 0xff, mine);
    if (mine + block < out.bytes) std::memset(begin + mine + block, 0xff, out.bytes - mine - block);
  }
}

void run_operation(const NcclOperation& operation) {
  const std::vector<NcclCall>& calls = operation.calls;
  const NcclCall& first = calls[0];
  const size_t ranks = calls.size(), count = first.count;
  if (count == 0) return;
  switch (first.kind) {
    case NcclKind::all_reduce: {
      const std::vector<char> sum = reduced(operation, 0, count);
      for (const NcclCall& c : calls) put(c.recv, sum);
      break;
    }
    case NcclKind::reduce_scatter: {
      std::vector<std::vector<char>> blocks;
      for (size_t r = 0; r < ranks; ++r) blocks.push_back(reduced(operation, r * count, count));
      for (size_t r = 0; r < ranks; ++r) put(calls[r].recv, blocks[r]);
      break;
    }
    case NcclKind::all_gather: {
      std::vector<std::vector<char>> blocks;
      for (const NcclCall& c : calls) blocks.push_back(block_of(c));
      for (const NcclCall& c : calls) {
        for (size_t r = 0; r < ranks; ++r)
          put(static_cast<char*>(c.recv) + r * blocks[r].size(), blocks[r], c.send);
      }
      break;
    }
    default:
      put(calls[1].recv, block_of(calls[0]));
      break;
  }
}

}  // namespace ottava::cuda_host
