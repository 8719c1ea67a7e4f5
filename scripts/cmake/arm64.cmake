# SPDX-License-Identifier: Apache-2.0
#
# A toolchain file: programs and libraries for arm64, made with Debian's cross compiler
# (crossbuild-essential-arm64) of its own libraries for arm64. deploy/arm64/build uses it. What the
# build itself runs goes through qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
find_program(CMAKE_CROSSCOMPILING_EMULATOR NAMES qemu-aarch64-static qemu-aarch64)
