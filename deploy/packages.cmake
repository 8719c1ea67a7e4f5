# SPDX-License-Identifier: Apache-2.0
#
# Debian packages and a relocatable tarball of the same tree: target `packages`, in the build's
# packages/. Each component is a package; what tests, demo and bench install is in none of them.
set(VITAMIN_MAINTAINER "Vitamin maintainers <maintainers@vitamin.invalid>")
set(directory ${CMAKE_CURRENT_BINARY_DIR}/debian)

set(packages
  "daemon   vitamind"
  "cli      vitamin-cli"
  "preload  vitamin-preload"
  "dev      libvitamin-dev")
set(package_targets vitamind vitamin completions)
foreach(target vitamin_interpose_cuda vitamin_interpose_hip)
  if(TARGET ${target})
    list(APPEND package_targets ${target})
  endif()
endforeach()
if(TARGET spank_vitamin)
  list(APPEND packages "slurm slurm-spank-vitamin")
  list(APPEND package_targets spank_vitamin)
endif()
if(TARGET vitamin-k8s-plugin)
  list(APPEND packages "kubernetes vitamin-k8s-plugin")
  list(APPEND package_targets vitamin-k8s-plugin)
  if(TARGET vitamin-dra-driver)
    list(APPEND package_targets vitamin-dra-driver)
  endif()
endif()

# What every package of Debian has in its documentation directory.
find_program(gzip gzip REQUIRED)
configure_file(debian/changelog ${directory}/changelog @ONLY)
execute_process(COMMAND ${gzip} -9nkf ${directory}/changelog COMMAND_ERROR_IS_FATAL ANY)
set(CPACK_COMPONENTS_ALL "")
foreach(line IN LISTS packages)
  string(REGEX MATCHALL "[^ ]+" words "${line}")
  list(GET words 0 component)
  list(GET words 1 package)
  install(FILES debian/copyright ${directory}/changelog.gz DESTINATION share/doc/${package}
          COMPONENT ${component})
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
endforeach()

set(CPACK_PACKAGE_NAME vitamin)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT ${VITAMIN_MAINTAINER})
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
string(TOLOWER ${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR} CPACK_SYSTEM_NAME)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/cmake/cpack_generator.cmake)

set(CPACK_DEB_COMPONENT_INSTALL ON)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)  # by itself cpack asks the building machine
endif()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(version "(= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DAEMON_DESCRIPTION "daemon that shares GPUs launch by launch
vitamind decides on which processors of a GPU each kernel launch of each of
its clients runs, so that many programs share one GPU in space. It opens no
device itself. NVIDIA's MPS is a unit of its own, vitamin-mps.service.")
set(CPACK_DEBIAN_DAEMON_PACKAGE_DEPENDS
    "systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles")
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA "")
foreach(script postinst prerm postrm)
  configure_file(debian/vitamind.${script} ${directory}/${script} COPYONLY)
  list(APPEND CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA ${directory}/${script})
endforeach()

set(CPACK_DEBIAN_CLI_DESCRIPTION "run programs with their GPU launches bound one by one
The vitamin program: run a command on a shared GPU, see what was bound, verify
that its bits do not depend on the others, show and drain what vitamind does.")
set(CPACK_DEBIAN_CLI_PACKAGE_DEPENDS "vitamin-preload ${version}")
set(CPACK_DEBIAN_CLI_PACKAGE_RECOMMENDS vitamind)

# Debian's tool takes the C library of this machine as the oldest: it does not know the floor.
include(${PROJECT_SOURCE_DIR}/interpose/glibc_floor/glibc_floor.cmake)
set(CPACK_DEBIAN_PRELOAD_DESCRIPTION "libraries that bind the GPU launches of a program
Preloaded into programs that use CUDA or HIP, one library for each. They
need nothing but glibc, ${VITAMIN_GLIBC_FLOOR} or newer, as old containers have it.")
set(CPACK_DEBIAN_PRELOAD_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_PRELOAD_PACKAGE_DEPENDS "libc6 (>= ${VITAMIN_GLIBC_FLOOR})")
set(CPACK_DEBIAN_PRELOAD_PACKAGE_SECTION libs)

set(CPACK_DEBIAN_DEV_DESCRIPTION "header and examples for policies of one's own
A policy says on which processors a launch runs. This is the C header that
one is written against, two examples, and what find_package(Vitamin) needs.")
set(CPACK_DEBIAN_DEV_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEV_PACKAGE_SUGGESTS vitamin-cli)

set(CPACK_DEBIAN_SLURM_DESCRIPTION "Slurm plugin that puts jobs on shared GPUs
Gives srun, sbatch and salloc the option --vitamin: the tasks of the job share
their GPUs with others through the node's vitamind. Built for Slurm
${VITAMIN_SLURM_RELEASE}; another release refuses to load it.")
set(CPACK_DEBIAN_SLURM_PACKAGE_DEPENDS
    "vitamin-preload ${version}, slurm-client (>= ${VITAMIN_SLURM_RELEASE}), \
slurm-client (<< ${VITAMIN_SLURM_RELEASE}.99)")
set(CPACK_DEBIAN_SLURM_PACKAGE_RECOMMENDS vitamind)

set(CPACK_DEBIAN_KUBERNETES_DESCRIPTION "Kubernetes device plugin and DRA driver for shares of GPUs
Offers the shares of this node's GPUs to Kubernetes, as devices of the
kubelet or for resource claims, and gives each container that has one the
socket of vitamind and the preloaded libraries.")
set(CPACK_DEBIAN_KUBERNETES_PACKAGE_DEPENDS "vitamin-preload ${version}")
set(CPACK_DEBIAN_KUBERNETES_PACKAGE_RECOMMENDS vitamind)

# RPMs, by `cpack -G RPM` (needs rpmbuild): what the kinds of RHEL share. rpm finds out itself which
# symbols of glibc are needed. Users and directories are made by systemd's own file triggers.
set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_LICENSE Apache-2.0)
set(CPACK_RPM_PACKAGE_AUTOREQPROV ON)
set(CPACK_RPM_SPEC_MORE_DEFINE "%define _build_id_links none")
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION
    /usr/lib/systemd /usr/lib/systemd/system /usr/lib/sysusers.d /usr/lib/tmpfiles.d
    /usr/share/man /usr/share/man/man1 /usr/share/man/man8 /usr/share/bash-completion
    /usr/share/bash-completion/completions /usr/share/zsh /usr/share/zsh/vendor-completions
    /usr/share/fish /usr/share/fish/vendor_completions.d)
foreach(line IN ITEMS "daemon vitamind" "cli vitamin-cli" "preload vitamin-preload")
  string(REPLACE " " ";" words "${line}")
  list(GET words 0 component)
  list(GET words 1 package)
  string(TOUPPER ${component} upper)
  string(REGEX REPLACE "\n.*" "" summary "${CPACK_DEBIAN_${upper}_DESCRIPTION}")
  string(REGEX REPLACE "^[^\n]*\n" "" text "${CPACK_DEBIAN_${upper}_DESCRIPTION}")
  set(CPACK_RPM_${upper}_PACKAGE_NAME ${package})
  set(CPACK_RPM_${upper}_PACKAGE_SUMMARY "${summary}")
  set(CPACK_RPM_${upper}_PACKAGE_DESCRIPTION "${text}")
endforeach()
set(CPACK_RPM_CLI_PACKAGE_REQUIRES "vitamin-preload = ${PROJECT_VERSION}")

# Building a package builds what is in it, and nothing else.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON PARENT_SCOPE)
include(CPack)
add_custom_target(package-contents DEPENDS ${package_targets})
add_custom_target(packages
  COMMAND ${CMAKE_CPACK_COMMAND} --config ${CMAKE_BINARY_DIR}/CPackConfig.cmake
  DEPENDS package-contents
  WORKING_DIRECTORY ${CMAKE_BINARY_DIR}
  COMMENT "Packages in ${CPACK_PACKAGE_DIRECTORY}"
  USES_TERMINAL VERBATIM)
