# SPDX-License-Identifier: Apache-2.0
#
# Read by cpack once for each generator: packages go below /usr, each component in its own; the
# tarball is one directory that can be put anywhere.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each component has its own
elseif(CPACK_GENERATOR STREQUAL "RPM")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  # The other packages need libraries in Debian's releases, or lie where Debian looks for them.
  set(CPACK_COMPONENTS_ALL daemon cli preload)
else()
  set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
  set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
  set(CPACK_PACKAGING_INSTALL_PREFIX "")
endif()
