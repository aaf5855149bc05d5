from kdgat.launch import main

main()
