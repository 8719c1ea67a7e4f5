// SPDX-License-Identifier: Apache-2.0
//
// What a copy brings to the host, read off the arguments of the call; only the audit wants to know.
//
// Destinations are host memory by the name of the call (DtoH, AtoH), by the descriptor (2D, 3D), or
// by what the driver says of a unified address. Graphs' copies are not calls and are not seen.
#pragma once

// Included by vendor_traits.h, behind the types that it needs.

#include <concepts>
#include <cstddef>

#include "runtime/audit/audit.h"

namespace vitamin::interpose {

// Whether the driver calls it the host's memory, or does not know it.
bool is_host_address(CUdeviceptr address);

namespace host_copies {

template <class Visit>
void plain(const void* host, std::size_t bytes, const Visit& visit) {
  if (bytes > 0) visit(runtime::HostBox{static_cast<const std::byte*>(host), bytes});
}

template <class Visit>
void unified(CUdeviceptr to, std::size_t bytes, const Visit& visit) {
  if (is_host_address(to)) plain(reinterpret_cast<const void*>(to), bytes, visit);
}

// A pitch or height of 0 means that the rows or slices lie side by side.
template <Descriptor T, class Visit>
void described(const T& copy, const Visit& visit) {
  const bool host = copy.dstMemoryType == CU_MEMORYTYPE_HOST;
  if (!host && !(copy.dstMemoryType == CU_MEMORYTYPE_UNIFIED && is_host_address(copy.dstDevice)))
    return;
  const void* base = host ? copy.dstHost : reinterpret_cast<const void*>(copy.dstDevice);
  runtime::HostBox box{static_cast<const std::byte*>(base), copy.WidthInBytes, copy.Height};
  box.pitch = copy.dstPitch != 0 ? copy.dstPitch : box.width;
  std::size_t first = copy.dstXInBytes + copy.dstY * box.pitch;
  if constexpr (requires { copy.Depth; }) {
    box.slices = copy.Depth;
    box.slice_pitch = box.pitch * (copy.dstHeight != 0 ? copy.dstHeight : copy.Height);
    first += copy.dstZ * box.slice_pitch;
  }
  box.host += first;
  if (box.bytes() > 0) visit(box);
}

template <class T>
concept Address = std::same_as<T, CUdeviceptr>;
template <class T>
concept HostAddress = std::same_as<T, void*>;

// The forms that copies have; anything else brings nothing. Types are exact: a fill's value is no
// address, and a stream is no host memory.
template <class Visit, HostAddress To, Address From, std::integral Bytes, class... Rest>
void each(const Visit& visit, To host, From, Bytes bytes, Rest...) {
  plain(host, bytes, visit);
}
template <class Visit, HostAddress To, std::integral Offset, std::integral Bytes, class... Rest>
void each(const Visit& visit, To host, CUarray, Offset, Bytes bytes, Rest...) {
  plain(host, bytes, visit);
}
template <class Visit, Address To, Address From, std::integral Bytes, class... Rest>
void each(const Visit& visit, To to, From, Bytes bytes, Rest...) {
  unified(to, bytes, visit);
}
template <class Visit, class... Rest>
void each(const Visit& visit, CUdeviceptr* to, CUdeviceptr*, std::size_t* bytes, std::size_t count,
          Rest...) {
  for (std::size_t i = 0; i < count; ++i) unified(to[i], bytes[i], visit);
}
template <class Visit, Descriptor T, class... Rest>
void each(const Visit& visit, const T* copy, Rest...) {
  described(*copy, visit);
}

}  // namespace host_copies

// visit(HostBox) for each piece of host memory that a copy with these arguments writes.
template <class Visit, class... Args>
void for_each_host_copy(const Visit& visit, Args... args) {
  if constexpr (requires { host_copies::each(visit, args...); }) host_copies::each(visit, args...);
}

}  // namespace vitamin::interpose
