# `cmake --install`: headers, the layers' static libraries and a package that find_package(cairn) finds. It contains no
# absolute path, so the installed tree can be moved.
include(CMakePackageConfigHelpers)
set(cairn_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cairn)

get_property(cairn_layers GLOBAL PROPERTY CAIRN_LAYERS)
list(REMOVE_ITEM cairn_layers cairn_advice cairn_mirror)  # Only the command links it.
install(TARGETS cairn_headers ${cairn_layers} EXPORT cairn-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT cairn-targets NAMESPACE cairn:: DESTINATION ${cairn_package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/cairn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/cairn-config.cmake.in
  ${PROJECT_BINARY_DIR}/cairn-config.cmake INSTALL_DESTINATION ${cairn_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cairn-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cairn-config.cmake ${PROJECT_BINARY_DIR}/cairn-config-version.cmake
  DESTINATION ${cairn_package_dir})
