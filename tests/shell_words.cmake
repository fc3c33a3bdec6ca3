# shell_word(folder result): whether tests may write this path into commands of a shell and into YAML, where the same characters
# as in support/main.cpp end a word or mean something else. Letters beyond ASCII are letters.
function(shell_word folder result)
  if(folder MATCHES "[][ \t\r\n'\"`\\$&|;<>()*?{},]")
    set(${result} FALSE PARENT_SCOPE)
  else()
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()
